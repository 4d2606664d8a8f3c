"""Evaluation of runs: what is measured, and on which pictures."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
import torchvision
import torchvision.transforms.v2.functional as TF
from sklearn.neighbors import KNeighborsClassifier

from ressl import labelled, measuring
from ressl.cards import metrics_of
from ressl.cli import main
from ressl.data.base import ArraySource
from ressl.errors import ResslError
from ressl.evaluating import CHOICES, evaluate, evaluate_each, evaluation_data
from ressl.evaluation import uniformity
from ressl.pretraining import pretrain
from ressl.recipes import Recipe
from ressl.report.numbers import rows_of
from ressl.reporting import report
from ressl.runs import Run


def test_a_folder_is_other_data_for_a_run_on_a_named_set(
    make_run: Callable[..., Run], make_folder: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Under its own name in the file, the table, the page and the card."""
    photos = str(make_folder(30))
    for data in ("shapes", "cifar10"):
        run = make_run(data, data=data)
        words = ["evaluate", str(run.path), "--protocol", "knn", "--device", "cpu", "--data"]
        assert main([*words, photos]) == 0
        assert "kNN on photos" in capsys.readouterr().out
        found = run.read_evaluation("knn-on-photos")
        assert found is not None
        assert (found["data"], found["own_data"], found["test_pictures"]) == ("photos", False, 6)
        assert list(metrics_of(run)) == ["knn-on-photos"]
        text = report([run], data=photos, device="cpu").read_text()
        assert "kNN on photos" in text
        assert "show pictures of photos." in text
        for wrong, says in (("./nothere", "no folder nothere"), ("x=photos", "'x'"), (f"shapes={photos}", "generated")):
            assert main([*words, wrong]) == 2
            assert says in capsys.readouterr().err
        assert [path.name for path in run.path.glob("evaluation/*.json")] == ["knn-on-photos.json"]


def test_the_test_input_is_the_one_that_was_used(run: Run) -> None:
    assert evaluate(run, "linear", device="cpu")["test_input"] == "16 x 16 px, as is"
    changed = evaluate(run, "linear", device="cpu", resize=18)
    assert changed["test_input"] == "16 x 16 px, short side 18, centre 16"


def test_large_pictures_are_measured_alike_while_training_and_after(
    tmp_path: Path, tiny: Callable[..., Recipe], make_folder: Callable[..., Path], memory: Any
) -> None:
    photos = make_folder(n=48, side=40)  # of one size, so resident, and more than twice the input
    run = pretrain(tiny(data="folder"), data=photos, out=tmp_path / "a", device="cpu", display=memory())
    measured = evaluate(run, "knn", device="cpu")
    assert measured["test_input"] == "18 x 18 px, as is"
    assert run.curve("knn")[-1][1] == measured["top1"]


def test_large_pictures_of_an_array_are_made_smaller_too(tiny: Callable[..., Recipe], array_file: Path) -> None:
    large = ArraySource("array", torch.zeros(10, 3, 40, 48, dtype=torch.uint8), torch.arange(10) % 2)
    data = evaluation_data(tiny(data="array"), str(array_file), train=large)
    assert data is not None
    assert data.train[0].shape == (10, 3, 18, 18)
    assert data.test[0].shape == (24, 3, 16, 16)  # those are small enough to stay


def test_a_change_that_nothing_reads_is_an_error(run: Run) -> None:
    with pytest.raises(ResslError, match="knn has no epochs to change"):
        evaluate(run, "knn", device="cpu", epochs=3)


def test_every_protocol_works_and_none_is_computed_twice(tmp_path: Path, run: Run, array_file: Path) -> None:
    changes = {
        "svm": {"shots": (2, 4), "draws": 2},
        "finetune": {"epochs": 1, "batch_size": 8, "fractions": (0.5,)},
        "transfer": {"to": (str(array_file), "shapes"), "epochs": 2},
    }
    first = dict(evaluate_each(run, CHOICES, device="cpu", changes=changes))
    assert list(first) == list(CHOICES)
    named = {"svm": "svm-shots=2,4-draws=2", "finetune": "finetune-fractions=0.5-epochs=1-batch_size=8"}
    named["transfer"] = "transfer-epochs=2"
    for name, result in first.items():
        assert (run.path / "evaluation" / f"{named.get(name, name)}.json").is_file()
        assert str(tmp_path) not in json.dumps(result)  # no path of this machine
        assert rows_of(name, result, {})
    assert first["knn"]["top1"] == first["classes"]["top1"]
    assert dict(map(tuple, first["knn-sweep"]["by_k"]))[5] == pytest.approx(first["knn"]["top1"])
    assert first["transfer"]["to"][0]["knn"] == first["knn"]["top1"]  # the same pictures, under another name
    assert [row["shots"] for row in first["svm"]["by_shots"]] == [2, 4, None]
    assert sum(map(sum, first["classes"]["confusion"])) == 24
    assert dict(evaluate_each(run, CHOICES, device="cpu", changes=changes)) == first


def test_geometry_is_of_any_pictures_and_not_of_the_first(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder the first ones are of the first classes."""
    seen: list[torch.Tensor] = []
    monkeypatch.setattr(measuring, "uniformity", lambda held: (seen.append(held), uniformity(held))[1])
    evaluate(run, "geometry", device="cpu")
    found = evaluate(run, "geometry", pictures=10, device="cpu")
    every, some = seen
    place = [int((every == row).all(1).nonzero()[0]) for row in some]
    assert (found["pictures"], len(set(place))) == (10, 10)
    assert place == sorted(place) != list(range(10))


def test_features_are_taken_once_for_all_protocols(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    plain_extract = labelled.extract
    monkeypatch.setattr(labelled, "extract", lambda *a, **k: (taken.append(1), plain_extract(*a, **k))[1])
    list(evaluate_each(run, ["knn", "knn-sweep", "svm", "classes"], device="cpu", changes={"svm": {"shots": (2,)}}))
    assert len(taken) == 2  # train and test
    evaluate(run, "knn", k=3, device="cpu")  # another setting, in another call: the cache on disk
    assert len(taken) == 2
    evaluate(run, "knn", k=3, device="cpu", again=True)
    assert len(taken) == 4


def test_backbones_of_timm_and_torchvision_are_measured_like_ours(tmp_path: Path, array_file: Path) -> None:
    given = {"data": str(array_file), "device": "cpu", "image_size": 32}
    found = evaluate("torchvision/resnet18", "knn", out=tmp_path / "t", k=3, **given)
    assert found["test_input"] == "16 x 16 px, short side 37, centre 32"
    assert (tmp_path / "t" / "evaluation" / "knn-k=3.json").is_file()
    # The plain way: torchvision's own network without its classifier, its own preparation, scikit-learn's vote.
    torch.manual_seed(0)
    network = torchvision.models.resnet18(weights=None).eval()
    network.fc = torch.nn.Identity()
    with np.load(array_file) as arrays, torch.no_grad():
        features = []
        for name in ("x_train", "x_test"):
            pixels = TF.to_dtype(torch.from_numpy(arrays[name]).permute(0, 3, 1, 2), torch.float32, scale=True)
            cut = TF.center_crop(TF.resize(pixels, [37], antialias=True), [32, 32])
            features.append(network(TF.normalize(cut, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225])))
        vote = KNeighborsClassifier(3, metric="cosine", weights=lambda d: np.exp((1 - d) / 0.1))
        theirs = 100 * vote.fit(features[0].numpy(), arrays["y_train"]).score(features[1].numpy(), arrays["y_test"])
    assert found["top1"] == pytest.approx(theirs, abs=5)  # one picture of 24
    timm_found = evaluate("timm/resnet10t", "knn", out=tmp_path / "m", **given)
    assert 0 <= timm_found["top1"] <= 100
    state = tmp_path / "r18.safetensors"
    torch.manual_seed(1)
    safetensors.torch.save_file(torchvision.models.resnet18(weights=None).state_dict(), state)
    loaded = evaluate("torchvision/resnet18", "knn", out=tmp_path / "t", k=3, weights=str(state), **given)
    assert loaded["weights"] != found["weights"]  # other weights in the same folder are another result
    smaller = evaluate("torchvision/resnet18", "knn", out=tmp_path / "t", k=3, **given | {"image_size": 16})
    assert smaller["test_input"] == "16 x 16 px, short side 18, centre 16"


def test_mistakes_about_foreign_backbones_are_said(tmp_path: Path, run: Run, array_file: Path) -> None:
    given = {"data": str(array_file), "device": "cpu", "out": tmp_path / "t"}
    with pytest.raises(ResslError, match="has no data of its own"):
        evaluate("timm/resnet18", "knn", device="cpu")
    with pytest.raises(ResslError, match="unknown torchvision model 'resnet19'; did you mean 'resnet1"):
        evaluate("torchvision/resnet19", "knn", **given)
    with pytest.raises(ResslError, match="torchvision/squeezenet1_1 has no linear layer at its end"):
        evaluate("torchvision/squeezenet1_1", "knn", **given)
    with pytest.raises(ResslError, match="unknown timm model 'resnett18'"):
        evaluate("timm/resnett18", "knn", **given)
    with pytest.raises(ResslError, match="there is no file"):
        evaluate("torchvision/resnet18", "knn", weights="gone.pth", **given)
    with pytest.raises(ResslError, match="is no state dict for torchvision/resnet18"):
        evaluate("torchvision/resnet18", "knn", weights=str(array_file), **given)
    (tmp_path / "garbage.pth").write_bytes(b"garbage")
    with pytest.raises(ResslError, match=r"garbage\.pth is no state dict for .*--weights wants none, default or a"):
        evaluate("torchvision/resnet18", "knn", weights=str(tmp_path / "garbage.pth"), **given)
    with pytest.raises(ResslError, match=r"cannot take pictures of 32 px \(.*224.*\); leave --image-size away"):
        evaluate("timm/vit_tiny_patch16_224", "knn", image_size=32, **given)
    with pytest.raises(ResslError, match="belong to a timm/ or torchvision/ backbone"):
        evaluate(run, "knn", weights="default", device="cpu")


def test_voc_is_measured_by_map_and_by_nothing_else(tmp_path: Path, run: Run, make_voc: Callable[[Path], Path]) -> None:
    make_voc(tmp_path / "voc")
    found = evaluate(run, "svm", data=f"voc07={tmp_path / 'voc'}", device="cpu", shots=(1,), draws=2)
    assert found["measure"] == "mAP"
    assert found["data"] == "voc07"
    assert found["test_pictures"] == 40
    assert (run.path / "evaluation" / "svm-shots=1-draws=2-on-voc07.json").is_file()
    with pytest.raises(ResslError, match="several labels, which knn cannot measure; use svm, geometry"):
        evaluate(run, "knn", data=f"voc07={tmp_path / 'voc'}", device="cpu")
