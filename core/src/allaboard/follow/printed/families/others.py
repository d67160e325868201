"""Paddle's libraries, MXNet and GluonCV, the logger of JAX's examples (clu), and libraries of speech, of
translation and of images that have a format each.
"""

from __future__ import annotations

import re

from allaboard.follow.printed.form import COLON, SPACE, Format, Part, Pattern, pattern
from allaboard.follow.printed.numbers import NUMBER

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
        pattern(r"\[Epoch <EPOCH>\] validation: (?=[\w-]+=)"), Part.VALIDATION, requires=None,
        first_epoch=0, sure=False,
    ),
    Pattern(
        pattern(r"\[Epoch <EPOCH>\] training: (?=[\w-]+=)"), requires=None, first_epoch=0, sure=False,
    ),
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
_TF_ESTIMATOR = (
    Pattern(pattern(r"\bloss = (?=\S+, step = \d+)"), whole=True, counts={"step": "step"}),
    Pattern(
        pattern(r"\bSaving dict for global step <STEP>: "), Part.VALIDATION, counts={"global_step": "step"}
    ),
)
_OPENNMT = (
    Pattern(pattern(r"\bStep <STEP>/\s*<TOTAL>; (?=acc: .*\btok/s;)"), requires=re.compile(r"ppl|xent")),
    Pattern(
        pattern(r"\bValidation (?=(?:perplexity|accuracy): )"), Part.VALIDATION, requires=None, sure=False
    ),
)
_ESPNET = (
    Pattern(pattern(r"(?<!\d)<EPOCH>epoch:train:\d+-<STEP>batch: "), per_epoch=True, first_epoch=1),
    Pattern(pattern(r"(?<!\d)<EPOCH>epoch results: .*\[valid\] (?=\w+=)"), Part.VALIDATION, requires=None),
)
_MARIAN = (
    Pattern(
        pattern(r"\[valid\] Ep\. <EPOCH> : Up\. <STEP> : (?=[\w-]+ : )"), Part.VALIDATION, requires=None
    ),
    Pattern(
        pattern(r"\bEp\. <EPOCH> : Up\. <STEP> : Sen\. [\d,]+ : (?=Cost )"), metrics=SPACE,
        requires=re.compile("Cost"),
    ),
)  # fmt: skip
_ICEFALL = (
    Pattern(pattern(r"\bEpoch <EPOCH>, batch <STEP>, .{0,800}?\btot_loss\["), per_epoch=True, first_epoch=1),
    Pattern(pattern(r"\bEpoch <EPOCH>, validation: (?=loss=)"), Part.VALIDATION, sure=False),
)
_LISTED = re.compile(rf"\b(?P<name>[A-Za-z]\w{{0,60}}):\s?\(?(?P<value>{NUMBER})(?P<unit>)(?=[\s,)\]]|$)")
_BASICSR = Pattern(
    pattern(r"\[epoch:\s*<EPOCH>, iter:\s*(?P<step>[\d,]{1,20}), (?=lr:\()"), metrics=_LISTED, requires=None
)
_SPEECHBRAIN = Pattern(
    pattern(r"\bepoch: <EPOCH>, (?=.* - train loss: )"), counts={"steps": "step"}, first_epoch=1
)
_WENET = Pattern(
    pattern(r"\bTRAIN Batch <EPOCH>/<STEP> (?=loss )"), per_epoch=True, first_epoch=0,
    metrics=re.compile(rf"\b(?P<name>(?!rank\b)[a-z]\w*) (?P<value>{NUMBER})(?P<unit>)"),
)  # fmt: skip
_PIX2PIX = Pattern(
    pattern(r"\(epoch: <EPOCH>, iters: <STEP>, time: [\d.]{1,20}, data: [\d.]{1,20}\),? "), metrics=SPACE,
    requires=None, per_epoch=True, first_epoch=1,
)  # fmt: skip

FORMATS = (
    Format(
        "Paddle",
        ("[train]", "[eval]", "epoch: [", "global step ", "global_step: "),
        tuple(p.read for p in _PADDLE),
    ),
    Format("MXNet", ("epoch[", "[epoch "), tuple(p.read for p in _MXNET)),
    Format(
        "OpenNMT", ("acc: ", "validation perplexity", "validation accuracy"), tuple(p.read for p in _OPENNMT)
    ),
    Format("ESPnet", ("epoch:train:", "epoch results: "), tuple(p.read for p in _ESPNET)),
    Format("Marian", (" : up. ",), tuple(p.read for p in _MARIAN)),
    Format("icefall", ("tot_loss[", "validation: loss="), tuple(p.read for p in _ICEFALL)),
    Format("BasicSR", ("[epoch:",), (_BASICSR.read,)),
    Format("SpeechBrain", ("train loss: ",), (_SPEECHBRAIN.read,), counts_epochs=True),
    Format("WeNet", ("train batch ",), (_WENET.read,)),
    Format("pix2pix", ("(epoch: ",), (_PIX2PIX.read,)),
    Format("clu's logging writer", ("logging_writer.py",), (_CLU.read,)),
    Format("TensorFlow's Estimator", ("loss = ",), tuple(p.read for p in _TF_ESTIMATOR)),
)
