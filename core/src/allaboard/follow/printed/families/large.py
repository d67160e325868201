"""Libraries that train large models: Megatron-LM, NeMo, DeepSpeed, torchtitan, MaxText, fairseq."""

from __future__ import annotations

import json
import re
from dataclasses import replace

from allaboard.follow.printed.form import QUOTED, SPACE, Format, Part, Pattern, Printed, pairs, pattern

_ITERATION = Pattern(
    pattern(
        r"(?:\bsamples/sec: [\d.]{1,20} \| )?\biteration\s+<STEP>/\s*<TOTAL> \|"
        r"(?=.*(?:elapsed time per iteration|consumed samples))"
    ),
    requires=None,
    speed={"elapsed time per iteration (ms)": 1e-3, "elapsed time per iteration (s)": 1.0},
)
_MEGATRON_VALIDATION = Pattern(
    pattern(r"\bvalidation loss at (?:the end of training|iteration <STEP>)(?: on \w+ set)? \|"),
    Part.VALIDATION,
)
_NEMO = Pattern(
    pattern(r"Training epoch <EPOCH>, iteration \d+/\d+ \| "),
    counts={"global_step": "step"},
    speed={"train_step_timing in s": 1.0},
    first_epoch=0,
)


def _nemo(text: str) -> Printed | None:
    """NeMo counts an iteration from 0 and within its epoch; ``global_step`` counts over all."""
    match = _NEMO_HEAD.search(text)
    if match is None:
        return None
    printed = _NEMO.read(text)
    if printed is None:
        return None
    if printed.step is not None:
        return printed
    return replace(printed, step=int(match["n"]) + 1, total=int(match["of"]) + 1, per_epoch=True)


_NEMO_HEAD = re.compile(r"Training epoch \d{1,9}, iteration (?P<n>\d{1,15})/(?P<of>\d{1,15}) \| ")
_DEEPSPEED = (
    Pattern(pattern(r"\bsteps: <STEP> (?=loss: .*iter time)"), speed={"iter time (s)": 1.0}),
    Pattern(
        pattern(r"\bstep=<STEP>, skipped=\d+, lr=\[(?=[^\]]+\])"), metrics=None, requires=None, sure=True
    ),
    Pattern(
        pattern(r"\bepoch=\d+/micro_step=\d+/global_step=<STEP>, (?=RunningAvgSamplesPerSec)"),
        requires=re.compile("SamplesPerSec"),
    ),
)
_LR = re.compile(r"\bstep=\d+, skipped=\d+, (lr)=\[([\d.e+-]{1,30})[,\]]")


def _deepspeed_step(text: str) -> Printed | None:
    printed = _DEEPSPEED[1].read(text)
    match = _LR.search(text)
    if printed is None or match is None:
        return None
    try:
        rate = float(match[2])
    except ValueError:
        return None
    return Printed(Part.TRAINING, printed.step, metrics={"lr": rate})


_TITAN = Pattern(pattern(r"\bstep:\s*<STEP>\s+(?=loss:\s.*\btps:)"), rates=())
_TITAN_VALIDATION = Pattern(pattern(r"\bvalidate step:\s*<STEP>\s+(?=loss:)"), Part.VALIDATION)
_MAXTEXT = Pattern(pattern(r"\bcompleted step: <STEP>, (?=seconds: )"), speed={"seconds": 1.0})
_MAXTEXT_EVAL = Pattern(pattern(r"\beval metrics after step: <STEP>, "), Part.VALIDATION)

_FAIRSEQ = (
    Pattern(
        pattern(r"\| epoch <EPOCH>:\s+\d+ / \d+ (?=.*\bnum_updates=)"),
        counts={"num_updates": "step"},
        rates=("ups",),
    ),
    Pattern(
        pattern(r"\| epoch <EPOCH> \| valid on '\w+' subset \|"), Part.VALIDATION, SPACE,
        counts={"num_updates": "step"},
    ),
    Pattern(
        pattern(r"\| epoch <EPOCH> \| (?=loss .*\bnum_updates )"), metrics=SPACE,
        counts={"num_updates": "step"}, rates=("ups",),
    ),
)  # fmt: skip
_FAIRSEQ_JSON = re.compile(r"\| (train_inner|train|valid) \| (\{.{1,4000}\})\s*$")


def _fairseq_json(text: str) -> Printed | None:
    match = _FAIRSEQ_JSON.search(text)
    if match is None:
        return None
    try:
        body = json.loads(match[2])
    except (ValueError, RecursionError):
        return None
    if not isinstance(body, dict):
        return None
    metrics = dict(pairs(QUOTED, match[2]))
    epoch, steps = metrics.pop("epoch", None), None
    for name in ("num_updates", "train_num_updates", "valid_num_updates"):
        steps = metrics.pop(name, steps)
    if steps is None:
        return None
    part = Part.VALIDATION if match[1] == "valid" else Part.TRAINING
    return Printed(part, int(steps), epoch=epoch, metrics=metrics, per_second=metrics.get("ups"))


FORMATS = (
    Format(
        "Megatron-LM",
        ("iteration",),
        (_ITERATION.read, _MEGATRON_VALIDATION.read),
        any_rank=True,
    ),
    Format("NeMo", ("training epoch",), (_nemo,), any_rank=True),
    Format(
        "DeepSpeed",
        ("steps:", "step="),
        (_DEEPSPEED[0].read, _deepspeed_step, _DEEPSPEED[2].read),
    ),
    Format("torchtitan", ("step:",), (_TITAN_VALIDATION.read, _TITAN.read)),
    Format("MaxText", ("step:",), (_MAXTEXT.read, _MAXTEXT_EVAL.read)),
    Format("fairseq", ("num_updates",), (*(p.read for p in _FAIRSEQ), _fairseq_json)),
)
