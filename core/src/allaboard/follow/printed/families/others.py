"""Paddle's libraries, MXNet and GluonCV, and the logger of JAX's examples (clu)."""

from __future__ import annotations

import re

from allaboard.follow.printed.form import COLON, Format, Part, Pattern, pattern

_PADDLE = (
    Pattern(
        pattern(r"\[Train\]\s?\[Epoch <EPOCH>/<EPOCHS>\]\s?\[Iter:\s*<STEP>/<TOTAL>\]\s?"),
        per_epoch=True, first_epoch=1, speed={"batch_cost": 1.0},
    ),
    Pattern(pattern(r"\[Train\]\s?\[Epoch <EPOCH>/<EPOCHS>\]\s?\[Avg\]\s?"), Part.VALIDATION, first_epoch=1),
    Pattern(
        pattern(r"\[Eval\]\s?\[Epoch <EPOCH>\]\s?\[Avg\]\s?"), Part.VALIDATION, requires=None, first_epoch=1
    ),
    Pattern(
        pattern(r"\bEpoch: \[<EPOCH>\] \[\s*<STEP>/\s*<TOTAL>\] (?=learning_rate: )"),
        per_epoch=True, first_epoch=0, speed={"batch_cost": 1.0},
    ),
    Pattern(
        pattern(r"\bepoch: \[<EPOCH>/<EPOCHS>\], (?:global_step|iter): <STEP>, "), first_epoch=1,
        speed={"avg_batch_cost": 1.0},
    ),
    Pattern(
        pattern(r"\bglobal step <STEP>, epoch: <EPOCH>, batch: \d+, (?=loss: )"), first_epoch=1,
        rates=("speed",),
    ),
    Pattern(
        pattern(r"\bloss: (?=[^,]+, learning_rate: [^,]+, global_step: \d+)"), whole=True,
        counts={"global_step": "step", "progress_or_epoch": "epoch"}, rates=("interval_steps_per_second",),
    ),
    Pattern(
        pattern(r"\[TRAIN\] epoch: <EPOCH>, iter: <STEP>/<TOTAL>, "), first_epoch=1, speed={"batch_cost": 1.0}
    ),
    Pattern(
        pattern(r"\[TRAIN\] Epoch=<EPOCH>/<EPOCHS>, Step=<STEP>/<TOTAL>, "), first_epoch=1, per_epoch=True,
    ),
)  # fmt: skip
_MXNET = (
    Pattern(
        pattern(r"\bEpoch\[<EPOCH>\] Batch \[(?:\d+-)?<STEP>\]\s+(?=Speed: )"), Part.TRAINING, COLON,
        requires=None, per_epoch=True, first_epoch=0,
    ),
    Pattern(pattern(r"\bEpoch\[<EPOCH>\] (?=Validation-)"), Part.VALIDATION, requires=None, first_epoch=0),
    Pattern(pattern(r"\bEpoch\[<EPOCH>\] (?=Train-)"), Part.VALIDATION, requires=None, first_epoch=0),
    Pattern(
        pattern(r"\[Epoch <EPOCH>\]\[Batch <STEP>\], Speed: [\d.]+ samples/sec, "), Part.TRAINING,
        requires=None, per_epoch=True, first_epoch=0,
    ),
)  # fmt: skip
_CLU = Pattern(
    pattern(r"\blogging_writer\.py:\d+\] \[<STEP>\] (?=.*=)"), Part.TRAINING, COLON,
    requires=re.compile(r"loss|accuracy|learning_rate|steps_per_sec"),
    rates=("steps_per_sec", "steps_per_second"),
)  # fmt: skip
_TF_ESTIMATOR = Pattern(pattern(r"\bloss = (?=\S+, step = \d+)"), whole=True, counts={"step": "step"})

FORMATS = (
    Format(
        "Paddle",
        ("[train]", "[eval]", "epoch: [", "global step ", "global_step: "),
        tuple(p.read for p in _PADDLE),
    ),
    Format("MXNet", ("epoch[", "[epoch "), tuple(p.read for p in _MXNET)),
    Format("clu's logging writer", ("logging_writer.py",), (_CLU.read,)),
    Format("TensorFlow's Estimator", ("loss = ",), (_TF_ESTIMATOR.read,)),
)
