"""XGBoost, LightGBM and CatBoost: a line for each round, the data sets' names in those of the metrics."""

from __future__ import annotations

import re

from allaboard.follow.printed.form import Format, Part, Pattern, Printed, pairs, pattern
from allaboard.follow.printed.numbers import NUMBER

_SPREAD = rf"{NUMBER}(?:\s?[+]\s?{NUMBER})?"
"""A number, with its deviation where it is of a cross-validation."""
_OF_XGBOOST, _OF_LIGHTGBM = rf"[\w.@ -]+:{_SPREAD}", rf"[\w ./-]+'s [\w@. -]+: {_SPREAD}"
_XGBOOST, _LIGHTGBM = (
    re.compile(rf"(?:^|\s)\[(?P<step>\d{{1,9}})\]\t(?P<metrics>{pair}(?:\t{pair})*)\s*$")
    for pair in (_OF_XGBOOST, _OF_LIGHTGBM)
)
_LIGHTGBM_COMMAND = Pattern(
    pattern(r"\[LightGBM\] \[Info\] Iteration:\s?<STEP>, (?=\S+ \S+ : )"), Part.TRAINING, requires=None
)
_CATBOOST = re.compile(
    r"^(?P<step>\d{1,9}):\t(?P<metrics>(?:learn|test): .*?)"
    r"(?:\ttotal: \S+(?: \S+)?)?(?:\tremaining: .*)?\s*$"
)
_NAMED = re.compile(rf"(?P<name>[^\t:]+):\s?(?P<value>{NUMBER})(?P<unit>)")


_BEST = re.compile(r"\bbest iteration(?: is)?:\s*$", re.IGNORECASE)


def _best(text: str) -> Printed | None:
    """The end of a training that stopped early: the round that follows was told before."""
    return _BEST.search(text) and Printed(Part.ASIDE, sure=False)


def _xgboost(text: str) -> Printed | None:
    match = _XGBOOST.search(text)
    if match is None:
        return None
    metrics = dict(pairs(_NAMED, match["metrics"]))
    return Printed(
        Part.TRAINING, int(match["step"]), metrics=metrics, sure=any("-" in name for name in metrics)
    )


def _lightgbm(text: str) -> Printed | None:
    match = _LIGHTGBM.search(text)
    return match and Printed(Part.TRAINING, int(match["step"]), metrics=dict(pairs(_NAMED, match["metrics"])))


def _catboost(text: str) -> Printed | None:
    match = _CATBOOST.match(text)
    if match is None:
        return None
    metrics = dict(pairs(_NAMED, match["metrics"]))
    return Printed(Part.TRAINING, int(match["step"]), metrics=metrics) if metrics else None


FORMATS = (
    Format("LightGBM", ("'s ", "[lightgbm]", "best iteration"), (_lightgbm, _LIGHTGBM_COMMAND.read, _best)),
    Format("XGBoost", ("]\t", "best iteration"), (_xgboost, _best), counts_anew=True),
    Format("CatBoost", (":\tlearn: ", ":\ttest: "), (_catboost,)),
)
