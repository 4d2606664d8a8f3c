"""Looking into a run: neighbours of augmented queries, maps, relations to the queue, and the views it trains on."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ressl import losses, rng
from ressl.data.augment import to_float
from ressl.data.base import Source
from ressl.data.decode import BrokenImage
from ressl.data.views import STRONG, View, Views, describe
from ressl.errors import ResslError
from ressl.evaluation.cache import FeatureCache
from ressl.evaluation.neighbours import nearest
from ressl.evaluation.projection import tsne
from ressl.evaluation.viewed import view_features
from ressl.measuring import Bench
from ressl.methods import METHODS
from ressl.nn import MemoryQueue
from ressl.recipes.recipe import Recipe
from ressl.runs import Run, build_method

KINDS = ("as it is", "weak", "contrastive")  # what is done to a query before its neighbours are looked up
THUMB = 64  # pixels; larger pictures are made smaller for pages


@dataclass(frozen=True)
class Neighbours:
    """Queries as the network saw them and what lies nearest, uint8 pictures."""

    kind: str
    queries: Tensor  # Q x 3 x H x W
    found: Tensor  # Q x n x 3 x H x W
    right: Tensor  # Q x n bool: the same class
    names: list[str]


@dataclass(frozen=True)
class Map:
    """Test pictures on a plane."""

    xy: Tensor  # N x 2
    labels: Tensor  # N; the first one where a picture has several
    pictures: Tensor  # N x 3 x h x w uint8


def page_cache(bench: Bench) -> FeatureCache:
    return FeatureCache(bench.subject.run.path / "evaluation" / "page", bench.own)


def class_numbers(labels: Tensor) -> Tensor:
    """Labels as one number each."""
    return (labels > 0).long().argmax(1) if labels.ndim == 2 else labels


def chosen_queries(labels: Tensor, count: int, seed: int = 0) -> Tensor:
    """Random test pictures, each of another class while there are some left: the same for every run on the data."""
    order = rng.permutation(seed, 2, len(labels), rng.EVALUATION, labels.device)
    first: dict[int, int] = {}
    for place, label in zip(order.tolist(), labels[order].tolist(), strict=True):
        first.setdefault(label, place)
    mine = [first[label] for label in sorted(first)]
    taken = set(mine)
    rest = [place for place in order.tolist() if place not in taken]
    return torch.tensor((mine + rest)[:count], device=labels.device)


def neighbours_of(bench: Bench, kind: str, count: int = 8, columns: int = 10, seed: int = 0) -> Neighbours:
    """The nearest training pictures to test pictures: as they are, or after a weak or a contrastive view."""
    fit, held = bench.features()  # first: of files that are read for it, only now is known which are broken
    r, data = bench.recipe, bench.data
    truth = class_numbers(data.test[1])
    chosen = chosen_queries(truth, count)
    queries = data.test[0][chosen]
    if kind == "as it is":
        features = held[chosen]
    else:
        view = query_view(r, kind)
        views = Views([view], r.mean, r.std, seed)
        features = view_features(bench.backbone, views, queries, precision=bench.precision)[0]
        rows = torch.arange(len(chosen), device=queries.device)
        queries = as_bytes(view(to_float(queries), views.draws(0, rows)[0]))
    index, _ = nearest(fit, features, columns)
    names = [data.classes[int(c)] if data.classes else str(int(c)) for c in truth[chosen]]
    right = _alike(data.test[1][chosen], data.train[1][index])
    return Neighbours(kind, queries.cpu(), data.train[0][index].cpu(), right.cpu(), names)


def _alike(queries: Tensor, found: Tensor) -> Tensor:
    """Q x n: the same class; where pictures have several, one in common. From labels Q and Q x n, or with C behind."""
    if queries.ndim == 1:
        return found == queries[:, None]
    return ((found > 0) & (queries > 0)[:, None]).any(2)


def query_view(recipe: Recipe, kind: str) -> View:
    """The recipe's own crop and flip alone, or its first view with more; of a recipe without one the paper's."""
    first = recipe.views[0]
    strong = next((view for view in recipe.views if view.strong), STRONG)
    return replace(first.weakened() if kind == "weak" else strong, size=recipe.image_size)


def as_bytes(images: Tensor) -> Tensor:
    """uint8 from floats in 0..1."""
    return (images.clamp(0, 1) * 255).round().to(torch.uint8)


def thumbs(images: Tensor, most: int = THUMB) -> Tensor:
    """uint8 pictures no larger than ``most`` pixels."""
    if max(images.shape[-2:]) <= most:
        return images.cpu()
    scale = most / max(images.shape[-2:])
    size = [max(1, round(side * scale)) for side in images.shape[-2:]]
    return as_bytes(F.interpolate(images.float() / 255, size, mode="bilinear", antialias=True)).cpu()


def map_of(bench: Bench, limit: int = 2000, seed: int = 0) -> Map:
    """t-SNE of the test features; made once and kept beside the evaluations."""

    def make() -> dict[str, Tensor]:
        bench.display.message("making a map of the test pictures (t-SNE)")
        held = bench.features()[1]
        truth = class_numbers(bench.data.test[1])
        order = rng.permutation(seed, 3, len(truth), rng.EVALUATION, truth.device)
        chosen = order[:limit].sort().values
        if len(chosen) < 5:
            raise ResslError(f"{len(chosen)} test pictures are too few for a map")
        xy = tsne(held[chosen], seed)
        return {"xy": xy, "labels": truth[chosen].cpu(), "pictures": thumbs(bench.data.test[0][chosen], 48)}

    asked = {"map": limit, "seed": seed, "pictures": bench.pictures, "precision": str(bench.precision)}
    found = page_cache(bench).get(asked, make, bench.again)
    return Map(found["xy"], found["labels"], found["pictures"])


@dataclass(frozen=True)
class Relations:
    """How a few pictures relate to the queue: distributions over its K entries, sorted from near to far."""

    pictures: Tensor  # n x 3 x H x W uint8, the teacher's view
    before: Tensor  # n x K at tau_s: as soft as the student's
    after: Tensor  # n x K at tau_t: the sharpened target
    taus: tuple[float, float]  # tau_s, tau_t


@torch.no_grad()
def relations_of(run: Run, images: Tensor, seed: int = 0) -> Relations:
    """The teacher's relations of ``images`` (n x 3 x H x W uint8) to the run's queue, before and after sharpening."""
    recipe = run.recipe
    method = build_method(recipe)
    method.load_state_dict(run.checkpoint().part("method."))
    teacher, queue = getattr(method, "teacher", None), getattr(method, "queue", None)
    sharpens = hasattr(method, "tau_s") and hasattr(method, "tau_t")
    if not sharpens or not isinstance(teacher, nn.Module) or not isinstance(queue, MemoryQueue):
        raise ResslError(f"{recipe.method} has no teacher with relations to a queue, so there is nothing to show")
    taus = float(method.tau_s), float(method.tau_t)  # type: ignore[arg-type]
    view = recipe.views[0]
    views = Views([view], recipe.mean, recipe.std, seed)
    rows = torch.arange(len(images))
    z1 = F.normalize(teacher.eval()(views(images, 0, rows)[0]), dim=1)
    relation = lambda tau: losses.log_relation(z1, queue.keys, tau).exp().sort(1, descending=True).values
    shown = as_bytes(view(to_float(images), views.draws(0, rows)[0]))
    return Relations(shown, relation(taus[0]), relation(taus[1]), taus)


def views_of(
    recipe: Recipe, source: Source, count: int = 8, draws: int = 3
) -> tuple[list[Tensor], list[tuple[str, Tensor]]]:
    """The first pictures a run of the recipe trains on, and ``draws`` of each of its views: (originals, views).

    The first draw is what the first step shows the networks; the others are what the same row gets at later steps.
    """
    order = rng.permutation(recipe.seed, 0, len(source), rng.ORDER, "cpu")
    views = Views(recipe.views, recipe.mean, recipe.std, recipe.seed)
    originals: list[Tensor] = []
    made: list[list[Tensor]] = [[] for _ in recipe.views]
    for row, place in enumerate(order.tolist()):
        if len(originals) == count:
            break
        try:
            pixels = torch.from_numpy(source.read(place).copy()).permute(2, 0, 1)[None]
        except BrokenImage:
            continue
        originals.append(pixels[0])
        at = torch.tensor([row])
        for step in range(draws):
            for v, (view, u) in enumerate(zip(recipe.views, views.draws(step, at), strict=True)):
                made[v].append(as_bytes(view(to_float(pixels), u))[0])
    if not originals:
        raise ResslError(f"none of the pictures of {source.name} can be read")
    titled = [
        (f"{_role(v, recipe)}: {describe(view)}", torch.stack(made[v]).unflatten(0, (len(originals), draws)))
        for v, view in enumerate(recipe.views)
    ]
    return originals, titled


def _role(place: int, recipe: Recipe) -> str:
    count = len(recipe.views)
    if not METHODS[recipe.method].ema:
        return "view" if count == 1 else f"view {place + 1}"
    if place == 0:
        return "teacher"
    return "student" if count == 2 else f"student {place}"
