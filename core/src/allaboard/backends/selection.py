"""Checks that a selection of logs names members of the run."""

from __future__ import annotations

from collections.abc import Iterable

from allaboard.backends.base import Selection
from allaboard.errors import BadInput
from allaboard.runs.observation import MemberSeen
from allaboard.text.names import nearest


def refuse_strangers(selection: Selection, members: Iterable[MemberSeen]) -> None:
    """Raises BadInput for a member or a rank that the run does not have. Before members are known, any is
    accepted.
    """
    ranks = {m.name: m.rank for m in members}
    if not ranks:
        return
    for name in selection.members or ():
        if name not in ranks:
            near = nearest(name, ranks)
            hint = f"did you mean {near!r}?" if near else f"there are {', '.join(ranks)}"
            raise BadInput(f"there is no member {name!r}; {hint}")
    for rank in selection.ranks or ():
        if rank not in ranks.values():
            raise BadInput(f"there is no rank {rank}; ranks are 0 to {max(ranks.values())}")
