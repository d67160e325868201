"""One preflight check of a job, and its result."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from allaboard.diagnosis import Evidence

ERROR, WARNING = "error", "warning"


@dataclass(frozen=True, slots=True)
class Check:
    """Result of a check. ``ok``: None: not permitted, or inconclusive. ``severity`` of a failed check:
    ``error`` stops the job, ``warning`` may not. ``fix``: a remedy. ``code`` and ``retryable``: those of the
    cause (core/docs/causes.md) of a refusal; None: its message matches no cause.
    """

    id: str
    ok: bool | None
    summary: str
    evidence: tuple[Evidence, ...] = ()
    fix: str | None = None
    severity: str = ERROR
    code: str | None = None
    retryable: bool | None = None

    @property
    def stops(self) -> bool:
        return self.ok is False and self.severity == ERROR

    def to_dict(self) -> dict[str, Any]:
        cause = {} if self.code is None else {"code": self.code, "retryable": self.retryable}
        return {
            "id": self.id,
            "ok": self.ok,
            "severity": self.severity,
            "summary": self.summary,
            "evidence": [asdict(e) for e in self.evidence],
            "fix": self.fix,
            **cause,
        }
