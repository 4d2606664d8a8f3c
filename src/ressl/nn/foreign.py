"""Backbones that others made: timm's and torchvision's, with or without their weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from ressl.checkpoints import not_finite
from ressl.errors import ResslError, printable, unknown
from ressl.memory import overfull

PREFIXES = ("timm/", "torchvision/")
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Foreign(NamedTuple):
    backbone: nn.Module  # B x 3 x H x W -> B x D, in eval mode
    size: int  # the input it was made for
    resize: int  # short side before the centre crop
    mean: tuple[float, float, float]
    std: tuple[float, float, float]


def is_foreign(name: str) -> bool:
    return name.startswith(PREFIXES)


def open_foreign(name: str, weights: str = "none") -> Foreign:
    """``timm/<model>`` or ``torchvision/<model>`` without its classifier.

    ``weights``: ``none`` (fresh, from seed 0), ``default`` (the library's own, from its cache or the network), or a
    state dict (.safetensors, .pth). Only ``default`` may ask the network.
    """
    library, _, model = name.partition("/")
    if library + "/" not in PREFIXES:
        raise unknown("library", library, ("timm", "torchvision"))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        try:
            found = (_timm if library == "timm" else _torchvision)(model, weights == "default")
        except ResslError:
            raise
        except Exception as error:  # no network, a proxy's page, a changed checksum: the libraries raise a wide choice
            raise ResslError(
                f"the weights of {name} could not be had ({printable(str(error))[:160]}); use --weights none, or a file"
            ) from None
    if weights not in ("none", "default"):
        _fill(found.backbone, Path(weights), name)
    return found._replace(backbone=found.backbone.eval())


def require_input(backbone: nn.Module, name: str, size: int) -> None:
    """Raise where a network cannot take pictures of ``size``: many transformers take one size only."""
    try:
        with torch.no_grad():
            backbone(torch.zeros(1, 3, size, size))
    except Exception as error:  # each library, and each network of it, says it in its own way
        reason = printable(str(error).split("\n")[0])[:160].rstrip(".!")
        raise ResslError(f"{name} cannot take pictures of {size} px ({reason}); leave --image-size away") from None


def _timm(model: str, pretrained: bool) -> Foreign:
    try:
        import timm
    except ImportError as error:
        raise ResslError(f"timm/{model} needs timm: pip install 'ressl[timm]'") from error
    if not timm.is_model(model):
        raise unknown("timm model", model, timm.list_models())
    backbone: Any = timm.create_model(model, pretrained=pretrained, num_classes=0)
    config = timm.data.resolve_model_data_config(backbone)
    size = int(config["input_size"][-1])
    return Foreign(backbone, size, round(size / config["crop_pct"]), _three(config["mean"]), _three(config["std"]))


def _torchvision(model: str, pretrained: bool) -> Foreign:
    import torchvision  # here, because it takes seconds

    known = torchvision.models.list_models(module=torchvision.models)
    if model not in known:
        raise unknown("torchvision model", model, known)
    backbone = torchvision.models.get_model(model, weights="DEFAULT" if pretrained else None)
    linear = [name for name, module in backbone.named_modules() if isinstance(module, nn.Linear)]
    if not linear:
        raise ResslError(f"torchvision/{model} has no linear layer at its end that could be taken off; use another")
    backbone.set_submodule(linear[-1], nn.Identity())
    size, resize, mean, std = 224, 256, _MEAN, _STD
    if pretrained:
        made_for = torchvision.models.get_model_weights(model).DEFAULT.transforms()
        size, resize = int(made_for.crop_size[0]), int(made_for.resize_size[0])
        mean, std = _three(made_for.mean), _three(made_for.std)
    return Foreign(backbone, size, resize, mean, std)


def _three(values: Any) -> tuple[float, float, float]:
    a, b, c = (float(v) for v in values)
    return a, b, c


def _fill(backbone: nn.Module, path: Path, name: str) -> None:
    """Load a state dict; a classifier's entries are passed over, but every one of the backbone's must be there."""
    if not path.is_file():
        raise ResslError(f"there is no file {path}; --weights wants none, default or a state dict (.safetensors, .pth)")
    try:
        if path.suffix == ".safetensors":
            state: dict[str, Tensor] = safetensors.torch.load_file(path)
        else:
            if why := overfull(path):
                raise ResslError(why)
            state = torch.load(path, map_location="cpu", weights_only=True)
        missing = backbone.load_state_dict(state, strict=False).missing_keys
    except ResslError as error:
        raise ResslError(f"{path} cannot be read: {error}") from None
    except (OSError, RuntimeError, ValueError, AttributeError, TypeError, safetensors.SafetensorError) as error:
        reason = printable(str(error).split("\n")[0])[:160]
        raise ResslError(f"{path} is no state dict for {name}: {reason}") from None
    except Exception as error:  # pickle's own errors have no common ancestor
        raise ResslError(
            f"{path} is no state dict for {name}: it is no file of tensors alone ({type(error).__name__}); --weights "
            "wants none, default or a state dict (.safetensors, .pth)"
        ) from None
    if missing:
        raise ResslError(f"{path} is no state dict for {name}: it lacks {missing[0]} and {len(missing) - 1} more")
    if spoilt := not_finite(backbone.state_dict()):
        raise ResslError(f"{path} is of no use: its {spoilt} is not finite")
