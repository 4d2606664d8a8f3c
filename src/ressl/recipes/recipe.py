"""What an experiment is: one frozen, typed value that can be saved, changed and rerun."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_type_hints

from ressl.data.views import STRONG, WEAK, View, parse_view
from ressl.errors import ResslError, unknown
from ressl.evaluation.linear import STEP, LinearProtocol
from ressl.files import read_text
from ressl.methods import METHODS
from ressl.nn.backbones import Stem, StemInit
from ressl.recipes.baselines import PAPER, baseline
from ressl.recipes.ranges import check_ranges
from ressl.recipes.typed import build, convert, hints_of, plain

LOOKING_ON = ("summary", "paper", "linear", "knn_every", "knn_k", "knn_temperature")  # change no weight
TOO_CLOSE = 0.8  # of tau_s: from there on the paper's models collapse
SMALLEST = 8  # px of the input; a network that halves it four times or five sees nothing in less


@dataclass(frozen=True)
class Recipe:
    """Everything that decides a result. Where it runs and how fast is not in here."""

    name: str
    summary: str = ""
    # data
    data: str = "folder"
    image_size: int = 32
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)
    views: tuple[View, ...] = (WEAK, STRONG)  # teacher first
    # model
    backbone: str = "resnet18"
    stem: Stem = "small"
    stem_init: StemInit = "torchvision"
    width: int = 64
    bn_groups: int = 8
    method: str = "ressl"
    options: Mapping[str, Any] = field(default_factory=dict)  # keyword arguments of the method
    # optimisation
    epochs: int = 200  # 0: the backbone as it is before training, to compare with
    batch_size: int = 256
    lr: float = 0.06  # per 256 samples
    optimiser: Literal["sgd", "lars"] = "sgd"
    momentum: float = 0.9
    weight_decay: float = 5e-4
    decay_norm_and_bias: bool = True
    warmup_epochs: float = 5.0
    seed: int = 0
    # watching and evaluation
    knn_every: int = 10  # epochs; 0: only at the end
    knn_k: int = 200
    knn_temperature: float = 0.1
    linear: LinearProtocol = STEP
    paper: Mapping[str, float] = field(default_factory=dict)  # the paper's numbers for this recipe

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", MappingProxyType(dict(self.options)))
        object.__setattr__(self, "paper", MappingProxyType(dict(self.paper)))

    def __reduce__(self) -> tuple[Any, ...]:
        return Recipe.from_json, (self.to_json(),)  # for copies and pickles: the read-only mappings allow neither

    def check(self) -> list[str]:
        """Raise what makes the recipe impossible; return warnings for what makes it unwise."""
        least = dict.fromkeys(("batch_size", "width", "bn_groups", "knn_k"), 1) | {"epochs": 0, "image_size": SMALLEST}
        for name, value in least.items():
            if getattr(self, name) < value:
                raise ResslError(f"{name} must be at least {value}, not {getattr(self, name)}")
        if self.lr <= 0 or self.weight_decay < 0 or self.warmup_epochs < 0 or not 0 <= self.momentum < 1:
            raise ResslError(
                f"lr must be above 0, weight_decay and warmup_epochs at least 0 and momentum in [0, 1), "
                f"not {self.lr}, {self.weight_decay}, {self.warmup_epochs} and {self.momentum}"
            )
        if self.knn_temperature <= 0 or self.knn_every < 0 or min(self.std) <= 0:
            raise ResslError(
                f"knn_temperature and std must be above 0 and knn_every at least 0, "
                f"not {self.knn_temperature}, {self.std} and {self.knn_every}"
            )
        if self.linear.resize is not None and self.linear.resize < self.image_size:
            raise ResslError(
                f"test pictures with a short side of {self.linear.resize} px have no centre of {self.image_size} px; "
                "raise resize (of linear) or lower image_size"
            )
        if not -(2**63) <= self.seed < 2**63:
            raise ResslError(f"seed must fit in 64 bits, not {self.seed}")
        if self.batch_size % self.bn_groups:
            raise ResslError(
                f"a batch of {self.batch_size} does not split into {self.bn_groups} batch-norm groups; "
                f"choose a batch_size that {self.bn_groups} divides, or other bn_groups"
            )
        if self.batch_size < 2 * self.bn_groups:
            raise ResslError(
                f"a batch of {self.batch_size} in {self.bn_groups} batch-norm groups leaves one sample each, which has "
                "no statistics; raise batch_size or lower bn_groups"
            )
        fewest, most = METHODS[self.method].fewest_views, METHODS[self.method].most_views
        if len(self.views) < fewest:
            raise ResslError(f"{self.method} needs at least {_many_views(fewest)}, not {len(self.views)}")
        if most is not None and len(self.views) > most:
            raise ResslError(
                f"{self.method} learns from {_many_views(most)}, not {len(self.views)}; leave out the others"
            )
        for view in self.views:
            view.validate()
        options = method_options(self.method)
        for key in self.options:
            if key not in options:
                raise unknown(f"option of {self.method}", key, options)
        return self._check_relation()

    def _check_relation(self) -> list[str]:
        full = {name: default for name, (_, default) in method_options(self.method).items()} | dict(self.options)
        check_ranges(full)
        queue_size = full.get("queue_size")
        if queue_size is not None and queue_size < self.batch_size:
            raise ResslError(
                f"a queue of {queue_size} is smaller than the batch of {self.batch_size}; "
                f"raise queue_size or lower batch_size"
            )
        tau_t, tau_s = full.get("teacher_temperature"), full.get("student_temperature")
        if tau_t is not None and tau_s is not None and tau_t > TOO_CLOSE * tau_s * (1 - 1e-9):  # 0.08 of 0.1 is
            return [
                f"teacher_temperature {tau_t} is {'not' if tau_t >= tau_s else 'hardly'} below student_temperature "
                f"{tau_s}: the target is then too blunt to guide, and the paper shows the model collapse from 0.08 on "
                "beside 0.1 (its Table 10)"
            ]
        return []

    def replace(self, **changes: Any) -> Recipe:
        """A changed copy. Keys are fields of the recipe or options of its method; values may be text.

        Another method brings its own settings (``recipes/baselines.py``); what is changed beside it wins over them.
        """
        method = convert(str, changes.get("method", self.method), "method")
        if method not in METHODS:
            raise unknown("method", method, METHODS)
        if method != self.method:
            # What the new method's settings are made for comes first, what the caller wants of them last.
            first = {key: changes[key] for key in ("name", "data", "image_size", "stem") if key in changes}
            rest = {key: value for key, value in changes.items() if key not in ("method", *first)}
            return self.replace(**first)._with_method(method).replace(**rest)
        hints, options = hints_of(Recipe), method_options(method)
        fields: dict[str, Any] = {}
        chosen = dict(self.options)
        size = convert(int, changes.get("image_size", self.image_size), "image_size")
        if "image_size" in changes and size != self.image_size:
            fields["views"] = tuple(
                dataclasses.replace(v, size=max(1, round(v.size * size / self.image_size))) for v in self.views
            )
            if self.linear.resize is not None:  # test pictures keep their margin
                scaled = round(self.linear.resize * size / self.image_size)
                fields["linear"] = dataclasses.replace(self.linear, resize=scaled)
        for key, value in changes.items():
            if key == "options":
                value = convert(hints[key], value, key)
                chosen |= {k: _option(options, method, k, v) for k, v in value.items()}
            elif key == "views":
                if isinstance(value, str) or not isinstance(value, Sequence):
                    raise ResslError(f"views wants a list of views, teacher first, not {value!r}")
                fields["views"] = tuple(_view(item, size) for item in value)
            elif key in hints:
                fields[key] = convert(hints[key], value, key)
            elif key in options:
                chosen[key] = convert(options[key][0], value, key)
            else:
                theirs = [name for name in METHODS if key in method_options(name)]
                if theirs:
                    raise ResslError(f"{method} has no option '{key}', which is one of {', '.join(theirs)}")
                raise unknown("recipe field or option", key, [*hints, *options])
        return dataclasses.replace(self, options=chosen, **fields)

    def _with_method(self, method: str) -> Recipe:
        """The same experiment with another method, as that method is usually trained."""
        old, new = baseline(self.method, self), baseline(method, self)
        defaults = {f.name: f.default for f in dataclasses.fields(Recipe)}
        fields: dict[str, Any] = {name: defaults[name] for name in old.fields} | dict(new.fields)  # old ones go back
        if "linear" in new.fields:
            fields["linear"] = dataclasses.replace(self.linear, **new.fields["linear"])
        weak, strong = self.views[:2] if self.method == "ressl" else (WEAK, STRONG)
        if new.views:
            fields["views"] = tuple(crop.view(weak, strong, self.image_size) for crop in new.views)
        known = method_options(method)
        options = {k: v for k, v in {**self.options, **new.options}.items() if k in known}
        number = PAPER.get(method, {}).get(self.name)
        fields["paper"] = {} if number is None else {"linear": number}
        return dataclasses.replace(self, method=method, options=options, **fields)

    def strays(self, other: Recipe) -> tuple[str, Any, Any] | None:
        """The first field or option by which the other trains something else, and both its values.

        Options that are texts do not count: they say where something lies, which may move, or how a network is built,
        which its tensors tell.
        """
        mine, theirs = (plain(recipe) | recipe.numbers for recipe in (self, other))
        fields = (key for key in mine if key not in (*LOOKING_ON, "name", "options"))
        return next(((key, mine[key], theirs[key]) for key in fields if mine[key] != theirs.get(key)), None)

    @property
    def numbers(self) -> dict[str, Any]:
        """The method's options that are no texts, those left as they are by default included."""
        usual = {name: default for name, (_, default) in method_options(self.method).items()}
        return {name: value for name, value in (usual | dict(self.options)).items() if not isinstance(value, str)}

    def to_json(self) -> str:
        return json.dumps(plain(self), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str, where: str = "the recipe") -> Recipe:
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ResslError(f"{where} is not JSON: {error}") from error
        if not isinstance(values, dict):
            raise ResslError(f"{where} must be a JSON object")
        recipe: Recipe = build(cls, _as_now(values), where)
        if recipe.method not in METHODS:
            raise unknown("method", recipe.method, METHODS)
        return recipe.replace(options=dict(recipe.options))

    @classmethod
    def from_file(cls, path: str | Path) -> Recipe:
        try:
            return cls.from_json(read_text(path), str(path))
        except (OSError, UnicodeDecodeError) as error:
            raise ResslError(f"cannot read the recipe {path}: {error}") from error


def _as_now(values: dict[str, Any]) -> dict[str, Any]:
    """What earlier versions wrote in other words: PCL v2 and LocalAgg counted the epochs before the first clusters."""
    match values:
        case {"options": {"cluster_after": int(first), **rest}} if first >= 0:
            epochs = values.get("epochs", Recipe.epochs)
            share = min(1.0, first / epochs) if type(epochs) is int and epochs > 0 else 0.0
            return {**values, "options": {"cluster_from": share, **rest}}
    return values


def method_options(method: str) -> dict[str, tuple[Any, Any]]:
    """The keyword arguments of a method: name -> (type, default)."""
    if method not in METHODS:
        raise unknown("method", method, METHODS)
    return dict(_keywords(METHODS[method].__init__))


@functools.cache
def _keywords(constructor: Callable[..., None]) -> dict[str, tuple[Any, Any]]:
    hints = get_type_hints(constructor)
    return {
        name: (hints[name], parameter.default)
        for name, parameter in inspect.signature(constructor).parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }


def _many_views(count: int) -> str:
    return {1: "one view", 2: "two views, teacher first"}.get(count, f"{count} views, teacher first")


def _option(options: dict[str, tuple[Any, Any]], method: str, key: str, value: Any) -> Any:
    if key not in options:
        raise unknown(f"option of {method}", key, options)
    return convert(options[key][0], value, key)


def _view(item: Any, size: int) -> View:
    """A view, its JSON form, or text: ``strong``, ``crop+flip``, ``strong,size=160,blur=0.1,crop=(0.14 0.7)``."""
    if isinstance(item, View):
        return item
    if isinstance(item, Mapping):
        return convert(View, item, "views")
    name, *settings = str(item).split(",")
    view = parse_view(name, size)
    hints = hints_of(View)
    for setting in settings:
        key, equals, value = setting.partition("=")
        key = key.strip().replace("-", "_")
        if key not in hints or not equals:
            raise unknown("setting of a view", setting, [f"{hint}=..." for hint in hints])
        if key in ("crop", "ratio", "blur_sigma", "randaugment_magnitude"):
            value = value.strip("()").replace(" ", ",").replace(":", ",")
        view = dataclasses.replace(view, **{key: convert(hints[key], value, key)})
    return view
