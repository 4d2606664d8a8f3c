"""Why each idea should help, and by how much, as far as that can be computed; what it is worth is measured.

The arithmetic is that of the CIFAR-10 step: 256 pictures, whose convolutions give 0.31 GB of bf16 numbers in a forward,
11.5 million weights, 4 ms a step, 4.3 TB/s to and from memory.
"""

from __future__ import annotations

from typing import NamedTuple


class Reason(NamedTuple):
    why: str
    expected: str = ""  # nothing where kernels only run beside each other, or are fewer with the same work


REASONS = {
    "fused norms": Reason(
        "norm, residual add and ReLU in one pass over the activations; without it one operation after the other",
        "+17 %: nine passes over 0.31 GB fewer",
    ),
    "shared results": Reason(
        "the two gradients of a block's result meet inside a kernel that reads them anyway",
        "+3 %: three passes over 0.16 GB fewer",
    ),
    "stem product": Reason(
        "three colours fill three of eight places of a tensor core; 27 of 32, or 12 of 16, are better",
        "+1 %: of 0.6 % of the products over half are zeros",
    ),
    "fused pool": Reason("the activation before the max-pool is the largest of all, and nobody else reads it"),
    "paired pixels": Reason(
        "64 channels fill half of a wide tile of the tensor cores; two neighbouring pixels fill all of it",
        "+1 %: in the linear evaluation 2 %, and a quarter of a step's products are not made so",
    ),
    "inside pixels": Reason(
        "of the products of a 3 x 3 convolution on 4 x 4 pixels 44 in 144 are with the zeros around them",
        "+5 %: a tenth of the products in three passes of four, which are two thirds of a step",
    ),
    "teacher stream": Reason("the teacher is a quarter of the work and fills the gaps of the student"),
    "gradient stream": Reason("weight gradients multiply while norms wait for memory"),
    "bf16 copies": Reason("two kernels instead of a cast of every weight and one of every gradient"),
    "fused update": Reason(
        "gradient norm, SGD and the teacher's average in two passes over the weights instead of six operations",
        "+3 %: nine transfers of 46 MB fewer, beside fewer kernels",
    ),
    "look ahead": Reason(
        "views are many small kernels, none of which fills the card; the networks leave room beside them",
        "+18 % at most: views alone take 0.6 ms",
    ),
    "tried convolutions": Reason("what is fastest depends on what runs beside it, and the library can only guess"),
    "our kernel": Reason("plain operations write a view down several times on the way, and the columns of the stem"),
    "four steps per replay": Reason("fewer replays, in the hope of fewer gaps"),
}
