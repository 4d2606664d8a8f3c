"""What the page must say beside its numbers: how our runs differ from the paper's, and what nobody has measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ressl.reproduce.grid import Ledger, read
from ressl.reproduce.tables import LOWSHOT, TITLES

DIFFERENCES = """\
Training:

- **The machine.** One GPU; the paper's ImageNet runs took eight. The eight batch-norm groups of a batch are every
  eighth sample, as in the authors' code for the small data sets. Their ImageNet code has eight blocks, one per GPU,
  which is the same for a batch in random order.
- **Arithmetic.** On a GPU bf16 in the networks; weights, batch-norm statistics, softmax and loss in float32.
  Similarities to the queue are products of float32 matrices in TF32: factors of 11 significant bits (bf16 has 8), sums
  in float32. The step runs as one CUDA graph with fused kernels, so sums are made in another order. The paper speaks of
  no reduced precision; `--precision fp32 --engine eager` has no bf16 and no graph, but its products and convolutions
  are in TF32 on a GPU that has it. On a CPU all is float32.
- **Views** are made on the device, in float. torchvision and PIL round to 256 levels after every operation, we do not.
  The blur is a Gaussian cut at three sigma (PIL's is a chain of box blurs). Both are held against torchvision in the
  tests. Large JPEG files are decoded at a fraction of their size where every crop still gets twice the pixels it needs.
- **Random numbers** (order, crops, weights, queue) are our own, so a seed of ours is none of the authors'.
- **The last batch** of an epoch is left out where it is not full, as in the authors' code.
- **Supervised training** sees pictures padded by 4 px of 32, cropped and mirrored, at lr 0.1; on ImageNet crops from
  0.08 of the area on, mirrored. By the paper's appendix all methods have the same augmentation.
- **Short runs** (`--quick`) warm up for a tenth of their epochs, not for five; their linear evaluation takes 20 epochs.
  Of Table 2 they show the collapse at 0.08, and exaggerate the slope before it: 0.06 and 0.07 lose 5 and 13 points to
  0.05, where the paper has 0.0 and 1.5. Sharper teachers (0.01 to 0.04) are two to four points ahead of 0.05, the
  paper's best after 200 epochs; the size of the queue, worth a point there, makes no difference. One seed each; the one
  setting that was made twice (tau_t 0.04, K 4096) has 59.4 and 59.6.
- **Table 1.** SimCLR, BYOL, SimSiam and supervised training take batch norm's statistics over the whole batch; the
  paper does not say. MoCo v2 has ReSSL's eight groups.
- **Table 3** gives both teachers at their best temperatures and does not say which those are. Ours has those of the
  weak teacher in both rows.
- **Table 10.** Where the paper writes 10.00, chance, ours collapses as well: the teacher's relation is uniform (entropy
  8.318, the logarithm of 4,096), the embeddings lie in one place (spread 0.002). The features before the head do not,
  though, and a linear classifier makes about 30 % of them.
- **Tables 5 to 7 and 9** do not say how the other methods were trained. Ours train them with what `baselines.py` (see
  below) names for each, and else with ReSSL's recipe: MoCo v2, MoCHi, PCL v2, AdCo and CLSA have its learning rate,
  head, momentum and, where they have one, queue (in MoCo v2's own paper: 0.03, 2048-128, 65,536).
- **Tables 5 to 7.** SimCLR, BYOL and SwAV without multi-crop train with batches of 256, where the paper gives 4096.
  SwAV's multi-crop is two views of 224 px and four of 112 px. Two rows are not made: AdCo with multi-crop (73.2), for
  ours has one query, and SEED (57.6), whose teacher must be trained first (the command stands below the table).
- **ImageNet.** The paper gives the learning rate, the head, the temperatures, the sizes of the crops, and a queue of
  "130k". From the authors' code: 131,072 in the queue, m 0.999, weight decay 1e-4, none on norms and biases (theirs has
  it on the scales of the shortcuts' norms, too), five epochs of warm-up, and the areas of the crops: 0.2 to 1 of the
  picture at 224 px, 0.172 to 0.86 at 192 px, 0.143 to 0.715 at 160 px, 0.114 to 0.571 at 128 px, 0.086 to 0.429 at
  96 px.

Where the paper is silent on small and medium pictures we follow the authors' code: batches of 256 in eight groups, a
head of 2048 and 128 without batch norm, a queue that begins as random unit vectors, a teacher of parameters only and in
train mode, weight decay on every parameter (LARS leaves norms and biases out), the max-pool kept on 64 px, the
student's view mirrored half of the time and gray at 0.2, a blur of 0.1 to 2 px, colour jitter in an order drawn for
every picture, mean and deviation of each set's colours, a new learning rate at every step. But for one thing: there
the first convolution begins as torchvision's others do (He's initialisation). Theirs replaces one of these afterwards,
and so begins as PyTorch's layers do, almost twice as large. `--stem-init pytorch` has it so. Over 200 epochs of Tiny
ImageNet that made little difference: 45.33 with it, 45.20 without, one run each.

Evaluation:

- **Last and best.** Ours is the last epoch; the authors' script prints the best test epoch, which stands beside it.
- **The classifier's learning rate** is the paper's 30, and too much for 200 classes: on one backbone of Tiny ImageNet,
  which has 45.4 by it, steps from 10 come to 46.1, from 3 to 46.4, and a cosine from 5 to 46.4 (paper 46.60; all rates
  above). That is most of what Tiny ImageNet lacks in Table 1. Why the authors had more with 30 we do not know; their
  script prints the best epoch, which is worth 0.2 here.
- **What the classifier sees** while it learns are crops from 0.08 of the area on, mirrored half of the time; on small
  and medium pictures its momentum is Nesterov's, its batch 256. The paper says none of this; the authors' code has it.
- **ImageNet's classifier.** The paper strictly follows SwAV, whose script has a weight decay of 1e-6 and lowers the
  learning rate after every epoch. The authors' script has no weight decay and lowers it at every step, and so does ours
  (lr 0.3, cosine, no Nesterov).
- **Linear evaluation** sees bf16 features on a GPU; the classifier's weights and sums are float32, its products TF32.
  The last batch of an epoch is left out where it is not full; the authors' script trains on it, too.
- **Supervised.** The paper does not give its recipe, and its number is likely that of the network's own classifier.
  Ours is a linear classifier on the frozen backbone, like all others.
- **STL-10**'s test pictures stay at 96 px, as in the authors' code; the paper speaks of a centre crop (`--resize`).
- **kNN** (cosine, 200 neighbours, votes exp(cosine / 0.1)) is not in the paper.
- **Low-shot SVMs.** The paper gives no C; ours is 1 on features of unit length, positives count twice. Its row of
  random weights is a backbone of no epochs, whose batch norms have the statistics that they begin with.
- **Cost.** Random pictures that lie on the GPU, batch 256 for every method, one GPU; the paper reads ImageNet, and
  trains SimCLR and BYOL with 4096 on 32 GPUs. What SimCLR does over all GPUs there, norms and similarities, is not in
  ours, and so four crops cost more beside it (the arithmetic stands below Table 8).
- **Figures 2 and 3** query and map test pictures (at most 2,000 of them); the paper takes training pictures.

The other methods: what the paper leaves open (heads, temperatures, momentum) is as usual for each, see
[Methods](METHODS.md#where-we-differ-from-the-papers) and `src/ressl/recipes/baselines.py`.
"""


def differences(ledger: Ledger) -> Iterator[str]:
    yield "\n## How this differs from the paper\n"
    made = Counter(
        f"{r['environment'].get('gpu', 'CPU')}, {r['precision']}, {r['engine']} engine"
        for r in ledger
        if "precision" in r and "engine" in r
    )
    if made:
        yield (
            "The records were made on: " + "; ".join(f"{where} ({n} runs)" for where, n in sorted(made.items())) + ".\n"
        )
    yield DIFFERENCES.rstrip()


def not_measured(ledger: Ledger) -> Iterator[str]:
    measured = {record["recipe"]["data"] for record in ledger if "linear" in record["evaluations"]}
    missing = [title for data, title in {**TITLES, "imagenet": "ImageNet"}.items() if data not in measured]
    if not any(read(record, LOWSHOT.cells[-1]) for record in ledger):
        missing.append("VOC07")
    if missing:
        first, last = ", ".join(missing[:-1]), missing[-1]
        names = f"{first} and {last}" if first else last
        yield "\n## Not measured\n"
        yield (
            f"**{names} {'have' if first else 'has'} not been measured.**\n"
            "Their commands run end to end in the tests, on small files in the official formats. That shows that they "
            "work, and\nnothing about their numbers."
        )
