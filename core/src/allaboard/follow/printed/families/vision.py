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
        pattern(r"\bEpoch\((?:val|test)\)\s*\[<EPOCH>\]\[\s*(\d+)/\s*\1\]\s+(?!eta)"),
        Part.VALIDATION, requires=re.compile(r"^(?!data_time$|time$|memory$)"), first_epoch=1,
    ),
    Pattern(
        pattern(r"\bIter\((?:val|test)\)\s*\[\s*(\d+)/\s*\1\]\s+(?!eta)"),
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
    Pattern(pattern(r"\bTest(?: \(EMA\))?:\s*\[\s*(\d+)/\s*\1\]\s+(?=Time)"), Part.VALIDATION),
)  # fmt: skip
_IMAGENET = (
    Pattern(
        pattern(r"\bEpoch: \[<EPOCH>\]\s?\[\s*<STEP>/\s*<TOTAL>\]\s+(?=(?:Batch )?Time\s)"), metrics=SPACE,
        per_epoch=True, first_epoch=0, speed={"Time": 1.0},
    ),
    Pattern(pattern(r"^\s?\* (?=(?:Acc|Prec)@1\s)"), Part.VALIDATION, SPACE, requires=None, sure=False),
)  # fmt: skip
_TORCHVISION = (
    Pattern(
        pattern(r"\bEpoch: \[<EPOCH>\]\s+\[\s*<STEP>/\s*<TOTAL>\]\s+(?=eta: )"),
        per_epoch=True, first_epoch=0, speed={"time": 1.0},
    ),
    Pattern(
        pattern(r"^\s?Test: (?: *EMA )?(?=\s?Acc@1 )"), Part.VALIDATION, SPACE, requires=None, sure=False
    ),
    Pattern(pattern(r"^\s?\* (?=Acc@1\s)"), Part.VALIDATION, SPACE, requires=None, sure=False),
)  # fmt: skip

_YOLO = re.compile(
    r"^\s*(?P<epoch>\d{1,9})/(?P<epochs>\d{1,9})\s+(?:[\d.]+[GM]?)\s+(?P<values>[\d.\s]+?|(?:(?:nan|[\d.]+)\s+)+\d+):\s"
)
_YOLO_HEAD = re.compile(
    r"^\s*Epoch\s+(?:GPU_mem|gpu_mem)\s+(?P<names>[\w\s]+?)\s+(?:Instances|labels|img_size|Size)\b"
)


class Ultralytics:
    """A table: its head names the losses of the rows, each with a bar of tqdm behind it. Rows of the
    validation have the same bar and no epoch.
    """

    def __call__(self, text: str) -> Printed | None:
        match = _YOLO.match(text)
        if match is None:
            return None
        bar = bar_of(text)
        if bar is None or bar.total is None:
            return None
        values = match["values"].split()[:-2] if len(match["values"].split()) > 2 else []
        names = ("box_loss", "cls_loss", "dfl_loss") if len(values) == 3 else ()
        metrics = {name: number_of(value) for name, value in zip(names, values, strict=False)}
        return Printed(
            Part.TRAINING, bar.step, bar.total, float(match["epoch"]), int(match["epochs"]), metrics,
            bar.per_second, per_epoch=True, first_epoch=1,
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
    Format("Ultralytics", ("%|", "━", "  all "), (Ultralytics(), _yolo_validation)),
    Format("timm", ("train: ", "test: ", "test ("), tuple(p.read for p in _TIMM)),
    Format("torchvision's references", ("epoch: [", "acc@1"), tuple(p.read for p in _TORCHVISION)),
    Format("PyTorch's ImageNet example", ("epoch: [", "acc@1", "prec@1"), tuple(p.read for p in _IMAGENET)),
)
