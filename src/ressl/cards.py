"""What travels with exported weights: how the input is prepared, where they come from, how others load them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from ressl.environment import FROM_SOURCE
from ressl.errors import ResslError, unknown
from ressl.methods import METHODS
from ressl.nn.backbones import BACKBONES, STEMS, in_words
from ressl.recipes.typed import plain
from ressl.report.numbers import epochs_in_words, rows_of
from ressl.runs import Run
from ressl.transform import Transform

SCHEMA = 1
_FACTS = ("finished", "steps", "seconds", "precision", "engine", "environment")  # of run.json; its data is a path here


_TAKEN = "before the classifier"  # of ResNets behind the average pooling; transformers pool in ways of their own
_LICENCE = "None stated; mind that of the pictures it was learned from."


def card_of(run: Run, features_dim: int, licence: str | None = None) -> dict[str, Any]:
    """The card of a run as JSON values; no path of this machine is in it."""
    recipe, facts = run.recipe, run.facts
    resize = recipe.linear.resize or recipe.image_size
    environment = facts.get("environment", {})
    version = environment.get("ressl")
    return {
        "schema": SCHEMA,
        "made_by": "ressl" if version in (None, FROM_SOURCE) else f"ressl {version}",
        "backbone": recipe.backbone,
        "stem": recipe.stem,
        "width": recipe.width,
        "features_dim": features_dim,
        "image_size": recipe.image_size,
        "resize": resize,
        "mean": list(recipe.mean),
        "std": list(recipe.std),
        "input": "N x 3 x H x W float32, RGB: pixels / 255, minus mean, over std; short side to resize, centre crop",
        "output": f"N x features_dim float32: features {_TAKEN}",
        "licence": licence or _LICENCE,
        "commit": environment.get("commit"),
        "recipe": _without_places(plain(recipe)),
        "run": {key: facts[key] for key in _FACTS if key in facts} | {"epochs_done": run.epochs_done},
        "metrics": metrics_of(run),
    }


def _without_places(recipe: dict[str, Any]) -> dict[str, Any]:
    """A recipe as JSON values; of the run that was SEED's teacher the name alone, not where it lies here."""
    options = recipe["options"]
    if isinstance(teacher := options.get("teacher"), str):
        return recipe | {"options": options | {"teacher": PurePath(teacher).name}}
    return recipe


def metrics_of(run: Run) -> dict[str, dict[str, Any]]:
    """The rows of every evaluation of the last step as the report shows them, each with that step.

    Where kNN is not among them, the last one that was measured while training is.
    """
    found: dict[str, dict[str, Any]] = {}
    for name, result in run.evaluations()[0].items():
        rows = [{"what": row.what, "value": row.value, "beside": row.beside} for row in rows_of(name, result)]
        if rows:
            found[name] = {key: result[key] for key in ("test", "step") if key in result} | {"rows": rows}
    curve = run.curve("knn")
    if curve and "knn" not in found:
        epoch, value = curve[-1]
        row = {"what": "kNN, while training", "value": f"{value:.2f}", "beside": f"after epoch {epoch:g}"}
        found["knn-while-training"] = {"rows": [row]}
    return found


def transform_of(card: Mapping[str, Any]) -> Transform:
    """The transform a card describes; raises where a value is missing or senseless."""
    try:
        size, resize = int(card["image_size"]), int(card["resize"])
        mean, std = (tuple(float(v) for v in card[key]) for key in ("mean", "std"))
        if size < 1 or resize < size or len(mean) != 3 or len(std) != 3:
            raise ValueError
        if not all(map(math.isfinite, (*mean, *std))) or min(std) <= 0:
            raise ValueError
    except (KeyError, TypeError, ValueError) as error:
        raise ResslError("its card lacks a sound image_size, resize, mean or std; export it again") from error
    return Transform(size, resize, mean, std)


def read_card(text: str | bytes) -> dict[str, Any]:
    """A card from its JSON, checked as far as loading needs it."""
    try:
        card = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ResslError("its card is not JSON; export it again") from error
    if not isinstance(card, dict) or card.get("schema") != SCHEMA:
        raise ResslError("its card is of another version; export it again, or use another ressl")
    transform_of(card)
    backbone, width, dim = card.get("backbone"), card.get("width"), card.get("features_dim")
    if (
        not isinstance(backbone, str)
        or not isinstance(width, int)
        or not 1 <= width <= 4096
        or not isinstance(dim, int)
    ):
        raise ResslError("its card names no sound backbone, width and features_dim; export it again")
    if card.get("stem") not in STEMS:
        raise unknown("stem", card.get("stem"), STEMS)
    return card


# --- how others load it ---


def network_code(card: Mapping[str, Any], file: str) -> str:
    """Python that builds the network in the library whose names its weights have, and fills it from ``file``."""
    return timm_code(card, file) if card["backbone"].startswith("timm/") else torchvision_code(card, file)


def torchvision_code(card: Mapping[str, Any], file: str) -> str:
    """Python that builds torchvision's network with this stem and width, and fills it from ``file``."""
    backbone, stem, width = card["backbone"], card["stem"], card["width"]
    if backbone not in BACKBONES:
        raise ResslError(f"{backbone} is no network of torchvision; use --to timm, safetensors, onnx or torch-export")
    block, layers = BACKBONES[backbone]
    lines = ["import torch"]
    if width == 64 and backbone != "resnet10":
        lines += ["import torchvision", "", f"model = torchvision.models.{backbone}()"]
    else:
        lines += [f"from torchvision.models.resnet import {block}, ResNet", ""]
        lines += [f"model = ResNet({block}, {layers})"]
    if width != 64:  # what torchvision's own constructor does, with another number
        lines += [f"model.inplanes = {width}", f"model.bn1 = torch.nn.BatchNorm2d({width})"]
        if stem == "imagenet":
            lines += [f"model.conv1 = torch.nn.Conv2d(3, {width}, 7, stride=2, padding=3, bias=False)"]
        for i, count in enumerate(layers):
            stride = "" if i == 0 else ", stride=2"
            lines += [f"model.layer{i + 1} = model._make_layer({block}, {width * 2**i}, {count}{stride})"]
    lines += [*_stem(stem, width), "model.fc = torch.nn.Identity()"]
    if file.endswith(".safetensors"):
        lines[0:1] = ["import safetensors.torch", "import torch"]
        lines += [f"model.load_state_dict(safetensors.torch.load_file({file!r}))"]
    else:
        lines += [f"model.load_state_dict(torch.load({file!r}, weights_only=True))"]
    return "\n".join([*lines, "model.eval()"])


def timm_code(card: Mapping[str, Any], file: str) -> str:
    """Python that builds timm's network with this stem, and fills it from ``file``."""
    backbone, stem, width = card["backbone"], card["stem"], card["width"]
    load = [f"timm.models.load_checkpoint(model, {file!r})", "model.eval()"]
    if backbone.startswith("timm/"):
        name = backbone.removeprefix("timm/")
        return "\n".join(["import timm", "", f"model = timm.create_model({name!r}, num_classes=0)", *load])
    if width != 64:
        raise ResslError(
            f"timm's ResNets have no width of {width}; use --to torchvision (the lines that load it are printed), "
            "onnx, torch-export or safetensors"
        )
    lines = ["import timm"] + (["import torch"] if stem != "imagenet" else [])
    if backbone == "resnet10":  # timm has its parts, but not by name
        block, layers = BACKBONES[backbone]
        made = f"timm.models.resnet.ResNet(timm.models.resnet.{block}, {layers}, num_classes=0)"
        lines += ["", f"model = {made}"]
    else:
        lines += ["", f"model = timm.create_model({backbone!r}, num_classes=0)"]
    return "\n".join([*lines, *_stem(stem, 64), *load])


def _stem(stem: str, width: int) -> list[str]:
    if stem == "imagenet":
        return []
    lines = [f"model.conv1 = torch.nn.Conv2d(3, {width}, 3, stride=1, padding=1, bias=False)"]
    return lines + (["model.maxpool = torch.nn.Identity()"] if stem == "small" else [])


def onnx_code(file: str) -> str:
    return (
        f"import onnxruntime\n\nsession = onnxruntime.InferenceSession({file!r})\n"
        'features = session.run(["features"], {"pixels": pixels})[0]  # N x 3 x H x W float32, normalised'
    )


def torch_export_code(file: str) -> str:
    return f"import torch\n\nmodel = torch.export.load({file!r}).module()  # unpickles: only files you trust"


# --- the model card ---

_MARKDOWN = re.compile(r"([\\`*_{}\[\]()#+.!|<>~$&-])")


def escaped(value: object) -> str:
    r"""Text that Markdown shows as it is, on one line: names come from folders and files of anybody.

    >>> print(escaped("my_cats <b>"))
    my\_cats \<b\>
    """
    flat = "".join(c if c.isprintable() else " " for c in str(value))
    return _MARKDOWN.sub(r"\\\1", flat)


def model_card(card: Mapping[str, Any]) -> str:
    """README.md of a model folder."""
    recipe = card["recipe"]
    labels = "with labels" if "labels" in METHODS[recipe["method"]].wants else "without labels"
    epochs = epochs_in_words(card["run"]["epochs_done"], recipe["epochs"])
    title = f"{card['backbone']} by {recipe['method']} on {recipe['data']}"
    rows = [
        ("method", recipe["method"]),
        ("data", f"{recipe['data']}, {labels}"),
        ("backbone", in_words(card["backbone"], card["stem"], card["width"])),
        ("features", f"{card['features_dim']} numbers per picture, {_TAKEN}"),
        ("input", f"{card['image_size']} px: short side to {card['resize']}, centre crop, RGB"),
        ("mean", ", ".join(map(str, card["mean"]))),
        ("std", ", ".join(map(str, card["std"]))),
        ("trained", f"{epochs}, batch {recipe['batch_size']}, seed {recipe['seed']}"),
        ("finished", card["run"].get("finished", "not finished")),
        ("made by", f"{card['made_by']}, commit {card['commit'] or 'unknown'}"),
    ]
    table = "\n".join(f"| {escaped(name)} | {escaped(value)} |" for name, value in rows)
    return (
        "---\nlibrary_name: ressl\nlicense: other\n"
        "tags:\n- self-supervised-learning\n- image-feature-extraction\n---\n\n"
        f"# {escaped(title)}\n\nA backbone trained {labels}. It turns a picture into a vector; pictures of the "
        f"same kind get similar vectors.\n\n| | |\n|---|---|\n{table}\n\n## Numbers\n\n{_numbers(card['metrics'])}\n\n"
        f"## Load it\n\n{_ways(card)}\n\n## Licence\n\n{escaped(card['licence'])}\n\nThe full recipe and "
        "the versions of everything used are in config.json.\n"
    )


def _numbers(metrics: Mapping[str, Mapping[str, Any]]) -> str:
    lines = []
    for found in metrics.values():
        for row in found["rows"]:
            beside = "; ".join(filter(None, (row["beside"], found.get("test"))))
            lines.append(f"| {escaped(row['what'])} | {escaped(row['value'])} | {escaped(beside)} |")
    return "| | result | |\n|---|---|---|\n" + "\n".join(lines) if lines else "None were measured."


def _ways(card: Mapping[str, Any]) -> str:
    file = "model.safetensors"
    code = {"ressl": 'import ressl\n\nmodel, transform = ressl.load(".")  # this folder'}
    if card["backbone"] in BACKBONES:
        code["torchvision"] = torchvision_code(card, file)
    if card["width"] == 64 or card["backbone"].startswith("timm/"):
        code["timm"] = timm_code(card, file)
    return "\n\n".join(f"With {name}:\n\n```python\n{text}\n```" for name, text in code.items())
