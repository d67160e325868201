"""What an evaluation says of a classifier, right and wrong."""

from __future__ import annotations

import math
from typing import Any

import pytest

from allaboard.errors import BadInput
from allaboard_kfp.classification import confusion_of, draw, roc_of, without_pictures

RATES = {"fpr": [0.0, 1.0], "tpr": [0.0, 1.0], "thresholds": [0.5, 0.1]}


def confusion(labels: Any, matrix: Any) -> Any:
    return confusion_of({"confusion": {"labels": labels, "matrix": matrix}})


def test_a_matrix_is_taken_as_it_is_written() -> None:
    found = confusion(["cat", "dog"], [[48, 2.0], [1, 49]])
    assert (found.labels, found.matrix) == (("cat", "dog"), ((48, 2), (1, 49)))
    assert confusion([0, 1], [[1, 0], [0, 1]]).labels == ("0", "1")
    assert confusion_of({"accuracy": 1.0}) is None and roc_of({}) is None


@pytest.mark.parametrize(
    ("labels", "matrix", "trouble"),
    [
        ([], [], "there are 0; give 1 to 100"),
        (["a"] * 101, [], "there are 101"),
        (["a", "a"], [[1, 0], [0, 1]], "'a' is there twice"),
        (["a", "b"], [[1, 0]], "has 1 row for 2 labels"),
        (["a"], [[1, 2]], "matrix[0] has 2 values; give 1 count"),
        (["a"], ["1"], "matrix[0] is '1'"),
        (["a"], [[-1]], "-1 is no count"),
        (["a"], [[0.5]], "0.5 is no count"),
        (["a"], [[math.nan]], "nan is no count"),
        (["a"], [[None]], "None is no count"),
        (["a"], [[True]], "True is no count"),
        (["a"], [[10**5000]], "a number that is too large is no count"),
        (["a"], [[[10**5000]]], "is no count"),
        ([None], [[1]], "None is no label"),
        ([True], [[1]], "True is no label"),
        ([""], [[1]], "0 characters"),
        (["x" * 201], [[1]], "201 characters"),
        ("ab", [[1]], "labels: 'ab' is no list"),
        (["a"], {"a": 1}, "matrix: {'a': 1} is no list"),
        (["a"], None, "matrix: None is no list"),
    ],
)
def test_what_is_no_matrix_is_refused_in_a_sentence(labels: Any, matrix: Any, trouble: str) -> None:
    with pytest.raises(BadInput) as refused:
        confusion(labels, matrix)
    assert trouble in str(refused.value) and len(str(refused.value)) < 300


def test_a_label_shows_neither_controls_nor_secrets() -> None:
    token = "hf_" + "q7" * 17
    (label, other) = confusion(["a\x1b[2Jb", token], [[1, 0], [0, 1]]).labels
    assert "\x1b" not in label and token not in other


def test_a_curve_of_many_points_is_thinned_and_keeps_its_ends() -> None:
    many = [n / 999 for n in range(1000)]
    found = roc_of({"roc": {"fpr": many, "tpr": many, "thresholds": many}})
    assert found is not None and len(found.fpr) == 200
    assert (found.fpr[0], found.tpr[-1], found.thresholds[-1]) == (0.0, 1.0, 1.0)


def test_the_infinite_first_threshold_of_scikit_learn_is_above_all_others() -> None:
    """A report writes it as null, for JSON has no infinity."""
    found = roc_of({"roc": {**RATES, "thresholds": [None, 0.9]}})
    assert found is not None and found.thresholds == (1.9, 0.9)


@pytest.mark.parametrize(
    ("change", "trouble"),
    [
        ({"fpr": [0.0]}, "have 1, 2 and 2 values"),
        ({"fpr": [], "tpr": [], "thresholds": []}, "one at least"),
        ({"fpr": [0.0, 1.5]}, "roc.fpr[1]: 1.5 is no rate"),
        ({"tpr": [None, 1.0]}, "roc.tpr[0]: None is no rate"),
        ({"thresholds": [0.5, None]}, "roc.thresholds[1]: None is no finite number"),
        ({"thresholds": [math.inf, 0.5]}, "roc.thresholds[0]: inf"),
        ({"tpr": "01"}, "roc.tpr: '01' is no list"),
    ],
)
def test_what_is_no_curve_is_refused_in_a_sentence(change: dict[str, Any], trouble: str) -> None:
    with pytest.raises(BadInput, match="roc") as refused:
        roc_of({"roc": {**RATES, **change}})
    assert trouble in str(refused.value)


def test_one_wrong_picture_does_not_take_the_other() -> None:
    drawn = []

    class Pictures:
        def log_confusion_matrix(self, categories: list[str], matrix: list[list[int]]) -> None:
            drawn.append((categories, matrix))

        def log_roc_curve(self, fpr: list[float], tpr: list[float], threshold: list[float]) -> None:
            drawn.append((fpr, tpr, threshold))

    results = {"confusion": [1, 2], "roc": RATES, "accuracy": 1.0}
    assert draw(results, Pictures()) == [
        "no confusion matrix is shown: confusion: list is no mapping; give labels, matrix"
    ]
    assert drawn == [([0.0, 1.0], [0.0, 1.0], [0.5, 0.1])]
    assert without_pictures(results) == {"accuracy": 1.0}
