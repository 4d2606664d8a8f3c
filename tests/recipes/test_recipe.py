"""A recipe can be saved, changed and rerun, and says what is wrong with it in one sentence."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ressl.data.views import STRONG, WEAK, View
from ressl.errors import ResslError
from ressl.evaluation.linear import LinearProtocol
from ressl.methods.base import begun
from ressl.recipes import RECIPES, Recipe, get_recipe, method_options
from ressl.recipes.typed import plain


@pytest.mark.parametrize("name", RECIPES)
def test_json_brings_every_recipe_back(name: str, tmp_path: Path) -> None:
    recipe = RECIPES[name]
    assert recipe.check() == []
    text = recipe.to_json()
    assert Recipe.from_json(text) == recipe
    assert Recipe.from_json(text).to_json() == text
    (tmp_path / "recipe.json").write_text(text)
    assert Recipe.from_file(tmp_path / "recipe.json") == recipe


def test_every_field_is_in_the_json() -> None:
    assert set(json.loads(get_recipe("cifar10").to_json())) == {f.name for f in dataclasses.fields(Recipe)}


def test_a_recipe_cannot_be_changed_in_place() -> None:
    recipe = get_recipe("cifar10")
    with pytest.raises(dataclasses.FrozenInstanceError):
        recipe.lr = 1.0  # type: ignore[misc]
    with pytest.raises(TypeError):
        recipe.options["queue_size"] = 1  # type: ignore[index]


# --- changes ---


CHANGES: list[tuple[str, Any, Callable[[Recipe], Any], Any]] = [
    ("epochs", "20", lambda r: r.epochs, 20),
    ("lr", "1e-2", lambda r: r.lr, 0.01),
    ("decay_norm_and_bias", "no", lambda r: r.decay_norm_and_bias, False),
    ("mean", "0.1,0.2,0.3", lambda r: r.mean, (0.1, 0.2, 0.3)),
    ("queue_size", "8192", lambda r: r.options["queue_size"], 8192),
    ("teacher_temperature", "0.07", lambda r: r.options["teacher_temperature"], 0.07),
    ("options", {"hidden_dim": "64"}, lambda r: (r.options["hidden_dim"], r.options["queue_size"]), (64, 4096)),
    ("stem", "medium", lambda r: r.stem, "medium"),
    ("linear", {"lr": 0.5, "schedule": "cosine"}, lambda r: r.linear, LinearProtocol("cosine", 0.5)),
    ("image_size", "48", lambda r: (r.image_size, [v.size for v in r.views]), (48, [48, 48])),
    ("views", ["weak", "strong"], lambda r: r.views, (WEAK, STRONG)),
    ("views", ["none", "crop+gray"], lambda r: r.views[1], View(flip=0.0, gray=0.2)),
    ("views", ["weak", "strong,blur=0.1,size=20,crop=0.1:0.5"], lambda r: r.views[1],
     dataclasses.replace(STRONG, blur=0.1, size=20, crop=(0.1, 0.5))),
    ("views", ["weak", "strong,crop=(0.14 0.7)"], lambda r: r.views[1].crop, (0.14, 0.7)),
    ("views", ["weak", "strong,crop=none"], lambda r: r.views[1].crop, None),
    ("views", [{"size": 32}, WEAK], lambda r: r.views, (View(size=32), WEAK)),
]  # fmt: skip


@pytest.mark.parametrize(("key", "value", "look", "expected"), CHANGES, ids=[f"{c[0]}={c[1]}"[:40] for c in CHANGES])
def test_changes_may_be_text(key: str, value: Any, look: Callable[[Recipe], Any], expected: Any) -> None:
    before = get_recipe("cifar10")
    after = before.replace(**{key: value})
    assert look(after) == expected
    assert before == get_recipe("cifar10")
    same = [f.name for f in dataclasses.fields(Recipe) if f.name not in (key, "options", "views")]
    assert all(getattr(before, name) == getattr(after, name) for name in same)
    assert Recipe.from_json(after.to_json()) == after


def test_a_smaller_picture_keeps_the_proportions_of_the_views() -> None:
    multi = get_recipe("cifar10").replace(views=["weak", "strong", "strong,size=20"])
    assert [v.size for v in multi.replace(image_size=16).views] == [16, 16, 10]


def test_text_views_take_the_new_size() -> None:
    assert [v.size for v in get_recipe("cifar10").replace(views=["weak", "strong"], image_size=16).views] == [16, 16]


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"epoch": 3}, r"'epoch'; did you mean 'epochs'\?"),
    ({"teacher_temp": 0.1}, r"did you mean 'teacher_temperature'\?"),
    ({"method": "resl"}, r"unknown method 'resl'; did you mean 'ressl'\?"),
    ({"options": {"queue_siz": 5}}, r"did you mean 'queue_size'\?"),
    ({"options": 5}, r"options must be a set of named values"),
    ({"views": ["weak", "srtong"]}, r"did you mean 'strong'\?"),
    ({"views": ["weak", "crop+grey"]}, r"unknown view 'grey'; did you mean 'gray'\?"),
    ({"views": ["weak", "strong,blurr=0.1"]}, r"did you mean 'blur=\.\.\.'\?"),
    ({"views": ["weak", "strong,blur=x"]}, r"blur wants a number"),
    ({"views": "weak"}, r"views wants a list"),
    ({"views": 5}, r"views wants a list"),
    ({"stem": "tiny"}, r"unknown value for stem 'tiny'"),
    ({"epochs": "many"}, r"epochs wants a whole number, not 'many'"),
    ({"epochs": 1.5}, r"epochs wants a whole number"),
    ({"lr": "fast"}, r"lr wants a number"),
    ({"lr": float("nan")}, r"lr wants a number"),
    ({"mean": "0.5"}, r"mean wants 3 values, not 1"),
    ({"queue_size": "1e3"}, r"queue_size wants a whole number"),
    ({"decay_norm_and_bias": "perhaps"}, r"decay_norm_and_bias wants true or false"),
    ({"linear": {"lrr": 1}}, r"did you mean 'lr'\?"),
    ({"optimiser": "adam"}, r"unknown value for optimiser 'adam'"),
]


@pytest.mark.parametrize(("changes", "says"), WRONG, ids=[str(w[0])[:50] for w in WRONG])
def test_a_wrong_change_is_named_and_the_nearest_offered(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ResslError, match=says) as caught:
        get_recipe("cifar10").replace(**changes)
    assert "\n" not in str(caught.value)


IMPOSSIBLE: list[tuple[dict[str, Any], str]] = [
    ({"batch_size": 100}, r"a batch of 100 does not split into 8 batch-norm groups"),
    ({"batch_size": 8}, r"a batch of 8 in 8 batch-norm groups leaves one sample each"),
    ({"queue_size": 128}, r"a queue of 128 is smaller than the batch of 256"),
    ({"lr": -0.1}, r"lr must be above 0"),
    ({"lr": 0}, r"lr must be above 0"),
    ({"momentum": 1.0}, r"momentum in \[0, 1\)"),
    ({"weight_decay": -1}, r"weight_decay"),
    ({"warmup_epochs": -1}, r"warmup_epochs"),
    ({"views": ["weak"]}, r"at least two views, teacher first, not 1"),
    ({"views": []}, r"at least two views"),
    ({"views": ["weak", "strong,blur=2"]}, r"probability 'blur' must be between 0 and 1"),
    ({"views": ["weak", "strong,crop=0.5:0.1"]}, r"crop"),
    ({"epochs": -1}, r"epochs must be at least 0, not -1"),
    ({"batch_size": -8}, r"batch_size must be at least 1"),
    ({"width": 0}, r"width must be at least 1"),
    ({"bn_groups": 0}, r"bn_groups must be at least 1"),
    ({"image_size": 0}, r"image_size must be at least 8"),
    ({"knn_k": 0}, r"knn_k must be at least 1"),
    ({"knn_temperature": 0}, r"knn_temperature"),
    ({"std": "0,1,1"}, r"std"),
    ({"seed": 10**30}, r"seed must fit in 64 bits"),
    ({"teacher_temperature": 0}, r"teacher_temperature must be above 0"),
    ({"student_temperature": -1}, r"student_temperature must be above 0"),
]


@pytest.mark.parametrize(("changes", "says"), IMPOSSIBLE, ids=[str(w[0])[:50] for w in IMPOSSIBLE])
def test_an_impossible_recipe_says_what_to_change(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ResslError, match=says) as caught:
        get_recipe("cifar10").replace(**changes).check()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("tau_t", "warned"), [(0.04, False), (0.079, False), (0.08, True), (0.099, True), (0.1, True)])
def test_a_blunt_teacher_is_a_warning_and_not_an_error(tau_t: float, warned: bool) -> None:
    warnings = get_recipe("cifar10").replace(teacher_temperature=tau_t).check()
    assert bool(warnings) is warned
    if warned:
        assert "collapse" in warnings[0]
        assert f"teacher_temperature {tau_t} is {'not' if tau_t == 0.1 else 'hardly'} below" in warnings[0]


@pytest.mark.parametrize("tau_s", [0.05, 0.1, 0.2, 0.3])
def test_the_warning_begins_at_four_fifths_of_the_students_temperature(tau_s: float) -> None:
    """Where the paper's Table 10 does, whatever the rounding; none of its best settings is warned of."""
    at = lambda share: get_recipe("cifar10").replace(student_temperature=tau_s, teacher_temperature=share * tau_s)
    assert at(0.8).check()
    assert not at(0.79).check()
    assert not any(recipe.check() for recipe in RECIPES.values())


def test_the_default_queue_counts_too() -> None:
    """A recipe that leaves queue_size to the method is checked against the method's own 4096."""
    recipe = dataclasses.replace(get_recipe("cifar10"), options={}, batch_size=8192)
    with pytest.raises(ResslError, match="a queue of 4096 is smaller"):
        recipe.check()


def test_an_option_that_the_method_has_not_is_an_error() -> None:
    with pytest.raises(ResslError, match=r"unknown option of ressl 'queue'; did you mean 'queue_size'"):
        dataclasses.replace(get_recipe("cifar10"), options={"queue": 5}).check()


# --- files ---


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is not JSON"),
        ("{", "is not JSON"),
        ("[]", "must be a JSON object"),
        ("{}", "lacks name"),
        ('{"name": 5}', "name wants text"),
        ('{"name": "x", "epoch": 5}', "did you mean 'epochs'"),
        ('{"name": "x", "options": 5}', "options must be a set of named values"),
        ('{"name": "x", "options": [1]}', "options must be a set of named values"),
        ('{"name": "x", "paper": {"linear": "high"}}', "wants a number"),
        ('{"name": "x", "options": {"queue": 5}}', "did you mean 'queue_size'"),
        ('{"name": "x", "method": "moco9"}', "unknown method"),
        ('{"name": "x", "method": ["ressl"]}', "method wants text"),
        ('{"name": "x", "views": ["weak", "strong"]}', "views"),
        ('{"name": "x", "views": [{"sice": 3}]}', "did you mean 'size'"),
        ('{"name": "x", "lr": NaN}', "lr wants a number"),
    ],
)
def test_a_wrong_file_is_refused_in_one_sentence(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "recipe.json"
    path.write_text(text)
    with pytest.raises(ResslError, match=says) as caught:
        Recipe.from_file(path)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_or_not_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ResslError, match="cannot read the recipe"):
        Recipe.from_file(tmp_path / "none.json")
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ResslError, match="cannot read the recipe"):
        Recipe.from_file(tmp_path / "bytes.json")


def test_an_unknown_recipe_offers_the_nearest() -> None:
    with pytest.raises(ResslError, match=r"unknown recipe 'cifar-10'; did you mean 'cifar10'\?"):
        get_recipe("cifar-10")


# --- anything at all ---


def one_sentence(error: ResslError) -> None:
    assert "\n" not in str(error)


KEYS = [f.name for f in dataclasses.fields(Recipe)] + [*method_options("ressl"), "epoch", "", "Options"]
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(-3, 300) | st.floats() | st.text(max_size=12)
    | st.sampled_from(["weak", "strong", "strong,size=8", "none", "crop+flip", "0.5,0.5,0.5", "ressl", "1e-3", "64"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=4), inner,
                                                                max_size=3),
    max_leaves=5,
)  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(changes=st.dictionaries(st.sampled_from(KEYS), values, max_size=4))
def test_any_change_gives_a_recipe_or_one_sentence(changes: dict[str, Any]) -> None:
    try:
        recipe = get_recipe("cifar10").replace(**changes)
        recipe.check()
    except ResslError as error:
        one_sentence(error)
        return
    assert Recipe.from_json(recipe.to_json()) == recipe


@settings(max_examples=300, deadline=None)
@given(content=st.dictionaries(st.sampled_from(KEYS), values, max_size=5))
def test_any_file_gives_a_recipe_or_one_sentence(content: dict[str, Any]) -> None:
    try:
        Recipe.from_json(json.dumps({"name": "x"} | content)).check()
    except ResslError as error:
        one_sentence(error)


@pytest.mark.parametrize(("epochs", "first"), [(200, 20), (16, 4), (50, 0), (10, 20)])
@pytest.mark.parametrize("method", ["pcl-v2", "localagg"])
def test_a_recipe_that_counts_epochs_to_the_first_clusters_is_read_as_before(
    method: str, epochs: int, first: int
) -> None:
    """So earlier versions wrote it; their runs are evaluated, exported and resumed, and cluster in the same epochs."""
    recipe = get_recipe("demo").replace(method=method, epochs=epochs)
    content = json.loads(recipe.to_json())
    del content["options"]["cluster_from"]
    content["options"]["cluster_after"] = first
    found = Recipe.from_json(json.dumps(content))
    share = found.options["cluster_from"]
    assert [epoch for epoch in range(epochs) if begun(share, epoch, epochs)] == list(range(first, epochs))
    assert found.replace(cluster_from=recipe.options["cluster_from"]) == recipe
    found.check()
    assert Recipe.from_json(found.to_json()) == found
    content["options"]["cluster_after"] = "soon"
    with pytest.raises(ResslError, match="cluster_after"):
        Recipe.from_json(json.dumps(content))


def test_another_image_size_takes_the_test_pictures_with_it() -> None:
    """Their short side keeps its margin; a centre larger than the picture is refused before anything is trained."""
    recipe = get_recipe("imagenet-r18")
    assert (recipe.image_size, recipe.linear.resize) == (224, 256)
    assert recipe.replace(image_size=448).linear.resize == 512
    assert recipe.replace(image_size=112, method="simclr").linear.resize == 128
    own = {**plain(recipe.linear), "resize": 320}
    assert recipe.replace(image_size=280, linear=own).linear.resize == 320
    assert get_recipe("cifar10").replace(image_size=64).linear.resize is None
    with pytest.raises(ResslError, match="no centre of 448 px; raise resize"):
        recipe.replace(image_size=448, linear=own).check()
