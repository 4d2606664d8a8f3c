"""The estimator as scikit-learn expects it: its own checks where they apply, the same on pictures where they do not."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from sklearn.base import clone
from sklearn.exceptions import NotFittedError, SkipTestWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.utils import estimator_checks
from sklearn.utils.estimator_checks import check_estimator

from ressl.errors import ResslError
from ressl.recipes import get_recipe
from ressl.sklearn import ReSSLEncoder

SMALL = {
    "backbone": "resnet10",
    "stem": "medium",
    "width": 4,
    "image_size": 16,
    "batch_size": 16,
    "bn_groups": 2,
    "hidden_dim": 16,
    "output_dim": 8,
    "queue_size": 32,
    "warmup_epochs": 0.5,
    "knn_every": 0,
    "knn_k": 5,
}


def pixels(n: int, seed: int = 0) -> np.ndarray:
    """n pictures of three classes that differ in colour."""
    images = np.random.default_rng(seed).integers(0, 120, (n, 16, 16, 3), dtype=np.uint8)
    for i in range(n):
        images[i, :, :, i % 3] += 130
    return images


def encoder(**changes: Any) -> ReSSLEncoder:
    return ReSSLEncoder(**({"epochs": 1, "changes": SMALL, "device": "cpu", "random_state": 0} | changes))


PICTURES, LABELS = pixels(48), np.arange(48) % 3


@pytest.fixture(scope="module")
def fitted() -> ReSSLEncoder:
    return encoder().fit(PICTURES)


# Those of scikit-learn's checks that bring no data of their own, or none that must be a picture.
@pytest.mark.parametrize(
    "check",
    [
        "check_estimator_cloneable",
        "check_estimator_get_tags_default_keys",
        "check_estimator_repr",
        "check_estimator_tags_renamed",
        "check_valid_tag_types",
        "check_no_attributes_set_in_init",
        "check_do_not_raise_errors_in_init_or_set_params",
        "check_mixin_order",
        "check_parameters_default_constructible",
        "check_get_params_invariance",
        "check_set_params",
        "check_estimators_unfitted",
        "check_transformers_unfitted",
    ],
)
def test_scikit_learn_s_own_checks_pass(check: str) -> None:
    run = getattr(estimator_checks, check, None)
    if run is None:
        pytest.skip(f"this scikit-learn has no {check}")
    run("ReSSLEncoder", encoder())


def test_the_others_are_left_out_by_scikit_learn_itself() -> None:
    """Its data are rows of numbers; the tag says that we take none, and it says so."""
    with pytest.warns(SkipTestWarning, match="requires input"):
        check_estimator(ReSSLEncoder())


def test_fit_returns_itself_changes_no_parameter_and_is_idempotent(fitted: ReSSLEncoder) -> None:
    estimator = encoder(random_state=5)
    before, given = copy.deepcopy(estimator.get_params()), PICTURES.copy()
    assert estimator.fit(PICTURES, LABELS) is estimator
    assert estimator.get_params() == before
    assert estimator.recipe_.seed == 5
    first = estimator.transform(PICTURES)
    state = dict(vars(estimator))
    np.testing.assert_array_equal(estimator.fit(PICTURES).transform(PICTURES), first)
    assert vars(estimator).keys() == state.keys()
    np.testing.assert_array_equal(given, PICTURES)
    assert not np.array_equal(fitted.transform(PICTURES), first)  # another seed


def test_transform_is_a_function_of_each_picture(fitted: ReSSLEncoder) -> None:
    whole = fitted.transform(PICTURES)
    assert whole.shape == (48, 32)
    assert whole.dtype == np.float32
    state = {k: id(v) for k, v in vars(fitted).items()}
    order = np.random.default_rng(0).permutation(48)
    np.testing.assert_allclose(fitted.transform(PICTURES[order]), whole[order], atol=1e-6)
    np.testing.assert_allclose(np.concatenate([fitted.transform(p[None]) for p in PICTURES[:4]]), whole[:4], atol=1e-6)
    assert state == {k: id(v) for k, v in vars(fitted).items()}
    assert list(fitted.get_feature_names_out())[:2] == ["resslencoder0", "resslencoder1"]
    assert len(fitted.get_feature_names_out()) == 32


def test_every_form_of_pictures_is_taken(
    fitted: ReSSLEncoder, make_folder: Callable[..., Path], tmp_path: Path
) -> None:
    whole = fitted.transform(PICTURES)
    memmap = np.memmap(tmp_path / "m", np.uint8, "w+", shape=PICTURES.shape)
    memmap[:] = PICTURES
    readonly = np.memmap(tmp_path / "m", np.uint8, "r", shape=PICTURES.shape)
    for form in (readonly, np.asfortranarray(PICTURES), PICTURES.tolist(), PICTURES / 255, PICTURES[::-1][::-1]):
        form = np.array(form, np.uint8) if isinstance(form, list) else form
        np.testing.assert_allclose(fitted.transform(form), whole, atol=1e-6)
    gray = PICTURES[..., 0]
    np.testing.assert_allclose(fitted.transform(gray), fitted.transform(np.stack([gray] * 3, -1)), atol=1e-6)
    folder = make_folder(40)
    paths = sorted(folder.rglob("*.png"))
    by_folder = encoder().fit(folder)
    np.testing.assert_allclose(by_folder.transform(folder), by_folder.transform(paths), atol=1e-6)
    for array in (np.array([str(p) for p in paths]), np.array(paths, dtype=object)):  # what numpy's indexing leaves
        np.testing.assert_array_equal(by_folder.transform(array[5:9]), by_folder.transform(paths[5:9]))
    by_list = encoder().fit(np.array([str(p) for p in paths]))
    np.testing.assert_allclose(by_list.transform(folder), by_folder.transform(folder), atol=1e-6)
    make_folder(40, broken=(7,))
    with pytest.raises(ResslError, match="1 of the pictures cannot be read, so rows would not match"):
        by_folder.transform(folder)


def test_a_named_recipe_is_trained_on_the_given_pictures() -> None:
    for recipe in ("cifar10", get_recipe("cifar10")):
        made = encoder(recipe=recipe).fit(PICTURES)
        assert (made.recipe_.name, made.recipe_.data, made.recipe_.epochs) == ("cifar10", "array", 1)
        assert made.history_
        assert clone(made).recipe == recipe


def test_it_is_cloned_and_pickled(fitted: ReSSLEncoder) -> None:
    fresh = clone(fitted)
    assert fresh.get_params() == fitted.get_params()
    with pytest.raises(NotFittedError):
        fresh.transform(PICTURES)
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.transform(PICTURES), fitted.transform(PICTURES))
    assert fitted.set_params(batch_size=7).batch_size == 7
    np.testing.assert_allclose(again.transform(PICTURES), fitted.transform(PICTURES), atol=1e-6)


def test_it_works_in_a_pipeline_and_a_search() -> None:
    pipeline = make_pipeline(encoder(), LogisticRegression(max_iter=1000))
    pipeline.fit(PICTURES, LABELS)
    assert pipeline.score(pixels(24, seed=1), np.arange(24) % 3) > 0.6  # the colour tells; chance is a third
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        search = GridSearchCV(pipeline, {"logisticregression__C": [1.0], "resslencoder__epochs": [1]}, cv=3)
        search.fit(PICTURES, LABELS)
    assert search.best_params_["resslencoder__epochs"] == 1


@pytest.mark.parametrize(
    ("X", "says"),
    [
        (np.zeros((40, 12)), r"Reshape your data"),
        (np.zeros(40), r"Reshape your data"),
        (np.zeros((40, 48, 3), np.uint8), r"found one of shape \(40, 48, 3\)\. Make it a batch of one: X\[None\]"),
        (np.zeros((0, 8, 8, 3)), r"0 sample\(s\)"),
        (np.full((40, 8, 8, 3), np.nan), "NaN"),
        (np.full((40, 8, 8, 3), 7.0), r"uint8 pixels or floats in 0\.\.1"),
        (np.full((40, 8, 8, 3), 3, np.int64), r"uint8 pixels or floats in 0\.\.1"),
        (np.zeros((40, 8, 8, 3), complex), "Complex data not supported"),
        (csr_matrix((40, 12)), r"[Ss]parse"),
        ([["a", 1]], r"could not convert|dtype"),
        (np.array(["a.jpg", 1], dtype=object), r"could not convert|dtype"),
    ],
)
def test_what_is_no_picture_is_refused_as_scikit_learn_does(X: Any, says: str) -> None:
    with pytest.raises((ValueError, TypeError), match=says):
        encoder().fit(X)
