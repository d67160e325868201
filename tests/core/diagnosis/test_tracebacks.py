"""What members printed, whatever launched them: marks before lines are taken off, exceptions are read."""

from __future__ import annotations

import pytest

from allaboard.diagnosis import diagnose
from allaboard.diagnosis.tracebacks import find_exceptions, strip_lines, strip_prefixes, uncaught_exceptions
from allaboard.runs.observation import Observation
from allaboard.testing import a_member, seen

TRACEBACK = """\
Traceback (most recent call last):
  File "/code/train.py", line 13, in <module>
    main()
  File "/code/steps.py", line 6, in step
    raise Odd("bad batch 7")
  File "/usr/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1, in _call
    return x
steps.Odd: bad batch 7"""


def marked(mark: str, text: str = TRACEBACK) -> str:
    return "\n".join(mark + line for line in text.splitlines())


@pytest.mark.parametrize(
    ("mark", "rank", "local"),
    [
        ("", None, None),
        ("[rank2]: ", 2, None),
        ("[default2]:", None, 2),
        ("[default1]:[rank5]: ", 5, 1),
        ("[trainer3]:", None, 3),
        ("[1,3]<stderr>:", 3, None),
        ("[1,3]<stdout>: ", 3, None),
        ("Fri Aug  1 12:00:00 2026[1,0]<stderr>:", 0, None),
        ("3: ", 3, None),
        ("[3] ", 3, None),
        ("2026-11-22T23:12:47.123Z ", None, None),
        ("2026-11-22 23:12:47,123 [rank1]: ", 1, None),
        ("[2026-11-22 23:12:47] ", None, None),
        ("23:12:47.1 | ", None, None),
        ("\x1b[31m[rank4]: \x1b[0m", 4, None),
        ("\x1b[36m(RayTrainWorker pid=7, ip=10.0.0.1)\x1b[0m ", None, None),
        ("node-7.lab: ", None, None),
    ],
)
def test_an_exception_is_read_whatever_its_launcher_writes_before_the_lines(
    mark: str, rank: int | None, local: int | None
) -> None:
    (one,) = find_exceptions(strip_lines(marked(mark)))
    assert (one.text, str(one.where)) == ("steps.Odd: bad batch 7", "/code/steps.py:6")
    assert (one.rank, one.local) == (rank, local)


@pytest.mark.parametrize("text", ["loss: 0.3", "[allaboard] {}", "step 3", "3:4", "[INFO] x", "  [rank1]: x"])
def test_what_is_no_mark_stays(text: str) -> None:
    assert strip_prefixes(text).text == text


def test_ranks_that_print_at_once_are_told_apart() -> None:
    ours, theirs = marked("[rank0]: ").splitlines(), marked("[rank1]: ").splitlines()
    mixed = [line for pair in zip(ours, theirs, strict=True) for line in pair]
    assert [one.rank for one in uncaught_exceptions(strip_lines(mixed))] == [0, 1]


def test_the_last_of_a_chain_is_what_was_raised() -> None:
    other = TRACEBACK.replace("steps.Odd: bad batch 7", "KeyError: 'x'")
    chain = f"{other}\n\nDuring handling of the above exception, another exception occurred:\n\n{TRACEBACK}"
    assert [one.text for one in find_exceptions(strip_lines(chain))] == ["steps.Odd: bad batch 7"]


def test_a_loader_s_and_a_spawned_process_s_own_exception_is_read() -> None:
    text = (
        "Traceback (most recent call last):\n"
        '  File "/code/train.py", line 3, in <module>\n    for b in loader:\n'
        "ValueError: Caught ValueError in DataLoader worker process 0.\n"
        "Original Traceback (most recent call last):\n"
        '  File "/code/data.py", line 9, in __getitem__\n    raise ValueError(i)\nValueError: 7\n'
    )
    assert [(o.text, str(o.where)) for o in uncaught_exceptions(strip_lines(text))] == [
        ("ValueError: 7", "/code/data.py:9")
    ]


def test_a_syntax_error_and_a_group_are_read() -> None:
    syntax = '  File "/code/train.py", line 3\n    x =\n       ^\nSyntaxError: invalid syntax'
    (one,) = find_exceptions(strip_lines(syntax))
    assert (one.text, str(one.where)) == ("SyntaxError: invalid syntax", "/code/train.py:3")
    group = (
        "  + Exception Group Traceback (most recent call last):\n"
        '  |   File "/code/train.py", line 9, in <module>\n  |     go()\n'
        "  | ExceptionGroup: two went wrong (2 sub-exceptions)\n"
    )
    assert find_exceptions(strip_lines(group))[0].text == "ExceptionGroup: two went wrong (2 sub-exceptions)"


def failed(*tails: str) -> Observation:
    names = ["master-0", "worker-0", "worker-1"][: len(tails)]
    members = tuple(
        a_member(name, "failed", rank=n, exit_code=1, ended=5.0 - n / 10) for n, name in enumerate(names)
    )
    return seen("failed", members=members, tails=dict(zip(names, tails, strict=True)))


def test_a_rank_s_exception_is_told_with_type_message_place_and_rank() -> None:
    found = diagnose(failed("step 1", marked("[rank1]: ")))[0]
    assert found.code == "python_exception" and found.blame == "worker-0"
    assert "worker-0, rank 1): steps.Odd: bad batch 7 at /code/steps.py:6" in found.summary


def test_torchrun_s_own_words_are_not_the_cause() -> None:
    banner = (
        "E1122 23:15:21.1 7 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: 1) "
        "local_rank: 1 (pid: 12) of binary: /usr/bin/python\n"
        "Traceback (most recent call last):\n"
        '  File "/usr/bin/torchrun", line 8, in <module>\n    sys.exit(main())\n'
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n====\ntrain.py FAILED\n"
    )
    victim = marked(
        "[rank0]: ",
        TRACEBACK.replace("steps.Odd: bad batch 7", "RuntimeError: Connection closed by peer [::1]"),
    )
    found = diagnose(failed("\n".join((marked("[rank3]: "), victim, banner))))[0]
    assert "rank 3): steps.Odd: bad batch 7 at /code/steps.py:6" in found.summary


def test_survivors_are_not_blamed_for_what_they_say_of_their_peer() -> None:
    victim = marked(
        "[rank0]: ",
        TRACEBACK.replace("steps.Odd: bad batch 7", "RuntimeError: Connection closed by peer [::1]"),
    )
    found = diagnose(failed(victim, marked("[default0]:[rank1]: ")))[0]
    assert (found.blame, found.code) == ("worker-0", "python_exception")
