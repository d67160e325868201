"""Messages by which git, pip, uv and HTTP libraries tell that a server does not answer: the same request may
succeed later. What a server answers and refuses is no such message.
"""

from __future__ import annotations

import re

_NO_ANSWER = (
    r"could not resolve|name or service not known|temporary failure in name|nodename nor servname|"
    r"no address associated|failed to lookup address|dns error|"
    r"time(d)?[ -]?out\b|timeout was reached|did not answer|"
    r"(connection|handshake) (was |has been )?(refused|reset|aborted|closed|broken|lost)|"
    r"(failed|unable|couldn't|could not) (to )?connect|tcp connect error|"
    r"no route to host|(network|host) is (unreachable|down)|"
    r"(error|http\S*|status|code)\D{0,20}\b(429|5\d\d)\b|\b(429|5\d\d) (server error|client error|internal|"
    r"bad gateway|service|gateway|too many)|too many (requests|5\d\d)|bad gateway|service unavailable|"
    r"internal server error|server has trouble|max retries exceeded|error sending request|"
    r"remote end (closed|hung up)|early eof|unexpected (disconnect|eof)|empty reply|(recv|send) failure|"
    r"transfer closed|not closed cleanly|ssl_error_syscall|tls connection was non-properly|"
    r"incomplete ?read|remotedisconnected|incomplete message|proxy connect aborted"
)
_REFUSED = (
    r"(error|http\S*|status|code)\D{0,20}\b(400|401|403|404|410)\b|\b(400|401|403|404|410) client error|"
    r"authentication failed|could not read (username|password)|invalid (username|credentials)|permission "
    r"denied|access denied|not our ref|couldn't find remote ref|repository .{0,300}not found|certificate|"
    r"\(from versions: (?!none)|no solution found|do not match the hashes"
)
FOLLOWED = rf"(?=.*({_NO_ANSWER}))(?!.*({_REFUSED}))"
"""The end of an expression that no letter's case matters to: such a message follows on the line."""


def is_unreachable(text: str) -> bool:
    """True of a message by which a server did not answer, and refused nothing."""
    return re.match(f"(?is){FOLLOWED}", text) is not None
