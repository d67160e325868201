"""Libraries that train models of images: MMEngine and MMCV, Detectron2, Ultralytics, timm, torchvision's
references and PyTorch's ImageNet example.
"""

from __future__ import annotations

import re

from allaboard.follow.printed.families.bars import bar_of
from allaboard.follow.printed.form import SPACE, Format, Part, Pattern, Printed, pattern
from allaboard.follow.printed.numbers import number_of

_MM = (
    Pattern(
        pattern(r"\bEpoch\(train\)\s*\[<EPOCH>\]\[\s*<STEP>/\s*<TOTAL>\]\s+"),
        per_epoch=True, first_epoch=1, speed={"time": 1.0},
    ),
    Pattern(pattern(r"\bIter\(train\)\s*\[\s*<STEP>/\s*<TOTAL>\]\s+"), speed={"time": 1.0}),
    Pattern(
        pattern(r"\bEpoch\((?:val|test)\)\s*\[<EPOCH>\]\[\s*(?P<last>\d+)/\s*(?P=last)\]\s+(?!eta)"),
        Part.VALIDATION, requires=re.compile(r"^(?!data_time$|time$|memory$)"), first_epoch=1,
    ),
    Pattern(
        pattern(r"\bIter\((?:val|test)\)\s*\[\s*(?P<last>\d+)/\s*(?P=last)\]\s+(?!eta)"),
        Part.VALIDATION, requires=re.compile(r"^(?!data_time$|time$|memory$)"),
    ),
    Pattern(
        pattern(r"\bEpoch \[<EPOCH>\]\[\s*<STEP>/\s*<TOTAL>\]\s+(?=lr: .*\beta: )"),
        per_epoch=True, first_epoch=1, speed={"time": 1.0},
    ),
    Pattern(pattern(r"\bIter \[\s*<STEP>/\s*<TOTAL>\]\s+(?=lr: .*\beta: )"), speed={"time": 1.0}),
    Pattern(
        pattern(r"\bEpoch\(val\) \[<EPOCH>\]\[\s*\d+\]\s+"), Part.VALIDATION, requires=None, first_epoch=1
    ),
)  # fmt: skip
_DETECTRON = Pattern(
    pattern(r"(?:\beta: \S+(?: \S+ \S+)?\s+)?\biter: <STEP>\s+(?=(?:total_)?loss)"), speed={"time": 1.0}
)
_TIMM = (
    Pattern(
        pattern(r"\bTrain: <EPOCH> \[\s*<STEP>/\s*<TOTAL>\s*\(\s*\d+%\)\]\s+"),
        per_epoch=True, first_epoch=0, speed={"Time": 1.0},
    ),
    Pattern(pattern(r"\bTest(?: \(EMA\))?:\s*\[\s*(?P<last>\d+)/\s*(?P=last)\]\s+(?=Time)"), Part.VALIDATION),
)  # fmt: skip
_IMAGENET = (
    Pattern(
        pattern(r"\bEpoch: \[<EPOCH>\]\s?\[\s*<STEP>/\s*<TOTAL>\]\s+(?=(?:Batch )?Time\s)"), metrics=SPACE,
        per_epoch=True, first_epoch=0, speed={"Time": 1.0},
    ),
    Pattern(pattern(r"^\s?\*\s+(?=(?:Acc|Prec)@1\s)"), Part.VALIDATION, SPACE, requires=None, sure=False),
)  # fmt: skip
_TORCHVISION = (
    Pattern(
        pattern(r"\bEpoch: \[<EPOCH>\]\s+\[\s*<STEP>/\s*<TOTAL>\]\s+(?=eta: )"),
        per_epoch=True, first_epoch=0, speed={"time": 1.0},
    ),
    Pattern(
        pattern(r"^\s?Test: (?: *EMA )?(?=\s?Acc@1 )"), Part.VALIDATION, SPACE, requires=None, sure=False
    ),
    Pattern(pattern(r"^\s?\*\s+(?=Acc@1\s)"), Part.VALIDATION, SPACE, requires=None, sure=False),
)  # fmt: skip

_YOLO = re.compile(
    r"^\s*(?P<epoch>\d{1,9})/(?P<epochs>\d{1,9})\s+[\d.]+[GM]?\s+(?P<values>(?:(?:nan|[\d.]+)\s+){2,12}\d+):\s"
)
_YOLO_HEAD = re.compile(
    r"^\s*Epoch\s+(?i:GPU_mem)\s+(?P<names>(?:\w+\s+){1,10}?)(?:Instances|labels|img_size|Size)\b"
)


def _yolo_head(text: str) -> Printed | None:
    match = _YOLO_HEAD.match(text)
    return match and Printed(Part.EPOCH, columns=tuple(match["names"].split()), sure=False)


def _yolo(text: str) -> Printed | None:
    """A row of a table: the losses by their place, then objects and size, then a bar. Rows of the validation
    have a bar and no epoch. Newer releases count epochs from 1, and the older one from 0.
    """
    match = _YOLO.match(text)
    bar = bar_of(text) if match is not None else None
    if match is None or bar is None or bar.total is None:
        return None
    losses = tuple(number_of(value) for value in match["values"].split()[:-2])
    return Printed(
        Part.TRAINING, bar.step, bar.total, float(match["epoch"]), None, {}, bar.per_second, per_epoch=True,
        last_epoch=int(match["epochs"]), columns=losses,
    )  # fmt: skip


_YOLO_ALL = re.compile(
    r"^\s*all\s+\d{1,12}\s+\d{1,12}\s+(?P<p>[\d.]+)\s+(?P<r>[\d.]+)\s+(?P<a>[\d.]+)\s+(?P<b>[\d.]+)\s*$"
)


def _yolo_validation(text: str) -> Printed | None:
    match = _YOLO_ALL.match(text)
    if match is None:
        return None
    names = ("Box(P", "R", "mAP50", "mAP50-95)")
    values = [float(v) for v in match.groups() if v.count(".") <= 1]
    if len(values) != len(names):
        return None
    metrics = dict(zip(("Box(P)", "R", "mAP50", "mAP50-95"), values, strict=True))
    return Printed(Part.VALIDATION, metrics=metrics, sure=False)


FORMATS = (
    Format("MMEngine", ("epoch(", "iter(", "epoch [", "iter ["), tuple(p.read for p in _MM)),
    Format("Detectron2", ("iter: ",), (_DETECTRON.read,)),
    Format("Ultralytics", ("%|", "━", "  all ", "gpu_mem"), (_yolo_head, _yolo, _yolo_validation)),
    Format("timm", ("train: ", "test: ", "test ("), tuple(p.read for p in _TIMM)),
    Format("torchvision's reference script", ("epoch: [", "acc@1"), tuple(p.read for p in _TORCHVISION)),
    Format("PyTorch's ImageNet example", ("epoch: [", "acc@1", "prec@1"), tuple(p.read for p in _IMAGENET)),
)
