"""Secrets in sight: what everything that prints, writes or sends passes its text through.

The rule: a secret reaches the one place that uses it, and no other. The environment that a process is given,
the object that is sent to a cluster, the record that a run is restarted from and the job itself keep their
values; `allaboard render` prints exactly what would be sent, which is its purpose. Everything that is told
about them (messages, differences, reports, pages, events, logs of tasks, evidence, bug reports) holds ``***``
instead.

What is a secret is told by where it stands (the password in a URL, a header, a variable whose name says so),
by how it looks (keys and tokens with a known form), or by being known (`secret_values` of a job, a client's
own token). Functions are pure, deterministic, total (they take any value and never raise), linear in the
text, and done twice they change nothing more.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

HIDDEN = "***"

KNOWN_FROM = 4
"""Shorter values are not searched for: they would be found in every other word."""

DEPTH = 100
"""Deepest level that is shown."""


# --- names ------------------------------------------------------------------------------------------------

_SECRET_WORDS = frozenset({
    "key", "token", "secret", "secrets", "password", "passwords", "passwd", "passphrase", "pwd",
    "credential", "credentials", "creds", "auth", "authorization", "cookie", "cookies", "dsn",
    "private", "signature", "sig", "jwt", "bearer", "webhook", "sessionid",
})  # fmt: skip
# Words that say it at the end of a longer name alone: DB_PASS, and not pass_rate.
_SECRET_ENDINGS = frozenset({"pass", "pat", "sas", "otp"})
# Plurals are numbers more often: MAX_TOKENS=512.
_PLURALS = frozenset({"tokens", "keys"})
_INSIDE_A_WORD = re.compile(r"passw(?:or)?d|passphrase|secret|credential")
_ENDING = re.compile(
    r"(?:api|access|private|auth|signing|encryption|account|license|ssh|deploy)keys?$|token$|cookie$"
)
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
# `secrets` and ALLABOARD_SECRETS name secrets of a cluster or a folder; they hold none.
_NOT_SECRET = frozenset({"PWD", "OLDPWD", "SSH_AUTH_SOCK", "private", "secrets", "ALLABOARD_SECRETS"})
_HARMLESS = re.compile(r"(?i:true|false|yes|no|on|off|none|null)")
_NUMBER = re.compile(r"[+-]?[0-9][0-9_]*+(?:\.[0-9]*+)?(?:[eE][+-]?[0-9]++)?")


def names_a_secret(name: object) -> bool:
    """True if the value under this name is a secret: ``HF_TOKEN``, ``apiKey``, ``PGPASSWORD``."""
    if not isinstance(name, str) or len(name) > 1000 or name in _NOT_SECRET:
        return False
    if _INSIDE_A_WORD.search(name.lower()):
        return True
    parts = [w.lower() for w in _WORDS.findall(name)]
    if len(parts) > 1 and parts[-1] in _SECRET_ENDINGS:
        return True
    return any(w in _SECRET_WORDS or w in _PLURALS or _ENDING.search(w) for w in parts)


def hidden_value(name: object, value: object) -> bool:
    """True if this value of this name has to be hidden. Nothing, true and false are no secrets, nor is a
    number that measures something (``MAX_TOKENS``).
    """
    if value is None or isinstance(value, bool) or not names_a_secret(name):
        return False
    text = value if isinstance(value, str) else _text(value)
    if not text.strip() or _HARMLESS.fullmatch(text.strip()):
        return False
    return not (_NUMBER.fullmatch(text.strip()) and _is_measure(str(name), text))


def _is_measure(name: str, number: str) -> bool:
    """``token_loss=0.3``, ``pad_token_id=50256``, ``MAX_TOKENS=512``: what a number says about training."""
    if _INSIDE_A_WORD.search(name.lower()):
        return False
    last = _WORDS.findall(name)[-1].lower()
    return "." in number or not (last in _SECRET_WORDS or last in _SECRET_ENDINGS or _ENDING.search(last))


# --- URLs -------------------------------------------------------------------------------------------------

_SIGNED = re.compile(
    r"x-(?:amz|goog|ms|oss|cos)-.*|sig|signature|policy|key-pair-id|.*accesskeyid|googleaccessid|code"
)
_IN_TEXT = r"\s\"'<>`"


def _query(stop: str) -> re.Pattern[str]:
    return re.compile(rf"([?&;#])([^=&;#?{stop}]++)=([^&#{stop}]*+)")


_QUERY_IN_TEXT, _QUERY = _query(f";{_IN_TEXT}"), _query("")
# From two slashes to the next blank or quote; a second `//` begins the next URL of a list.
_BODY_IN_TEXT = re.compile(rf"//((?:[^/{_IN_TEXT}]|/(?!/))++)")
_BODY = re.compile(r"//(.++)", re.DOTALL)


def redact_url(uri: object) -> str:
    """A URL without user, password and the parameters that sign it: ``s3://***@bucket/x?X-Amz-Signature=***``.

    All of ``uri`` is taken for one URL, malformed ones too. For a text with URLs in it: `redact_text`.
    """
    text = uri if isinstance(uri, str) else _text(uri)
    return redact_text(_QUERY.sub(_parameter, _BODY.sub(_userinfo, text, count=1)))


def _userinfo(match: re.Match[str]) -> str:
    at = _end_of_userinfo(match[1])
    return f"//{match[1]}" if at < 0 else f"//{HIDDEN}{match[1][at:]}"


def _end_of_userinfo(body: str) -> int:
    """Index of the ``@`` that ends user and password, in the text after the two slashes; -1: none."""
    authority = re.match(r"[^/?#]*+", body)
    end = authority.end() if authority else 0
    at = body.rfind("@", 0, end)
    if at < 0 and not body.startswith("["):
        # A raw '/', '?' or '#' in a password ends the host too early: after the colon is no port then.
        colon = body.rfind(":", 0, end)
        if colon >= 0 and body[colon + 1 : end] and not body[colon + 1 : end].isdigit():
            at = body.rfind("@")
    return at


def _parameter(match: re.Match[str]) -> str:
    name = _unquoted(match[2])
    hide = match[3] and (_SIGNED.fullmatch(name.lower()) or hidden_value(name, match[3]))
    return f"{match[1]}{match[2]}={HIDDEN}" if hide else match[0]


def _of_urls(text: str) -> Iterator[str]:
    """The passwords and signatures of the URLs in a text, as they stand there and as they are meant. Users,
    dates and names of algorithms, which `redact_url` hides as well, are words that stand elsewhere too.
    """
    for match in _BODY_IN_TEXT.finditer(text):
        user, colon, password = match[1][: max(0, _end_of_userinfo(match[1]))].partition(":")
        value = password if colon else user if _looks_random(user) else ""
        yield from (value, _unquoted(value))
    for match in _QUERY_IN_TEXT.finditer(text):
        if match[3] and hidden_value(_unquoted(match[2]), match[3]):
            yield from (match[3], _unquoted(match[3]))


def _unquoted(text: str) -> str:
    return re.sub(r"%([0-9A-Fa-f]{2})", lambda m: chr(int(m[1], 16)), text)


# --- text -------------------------------------------------------------------------------------------------

_PEM = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}?PRIVATE KEY.*?(?:-----END [A-Z0-9 ]*+-----|\Z)", re.DOTALL)
_TOKENS = re.compile(
    r"(?<![A-Za-z0-9_-])(?:"
    r"A(?:KIA|SIA|ROA|IDA)[A-Z0-9]{12,}+"  # AWS
    r"|gh[opusr]_[A-Za-z0-9]{16,}+|github_pat_\w{16,}+|"
    r"gl(?:pat|oas|dt|rt|rtr|cbt|ptt|ft|imt|agent|soat|ffct|wt)-[\w-]{16,}+"  # GitHub, GitLab
    r"|hf_[A-Za-z0-9]{16,}+|sk-(?=[\w-]*?[0-9])[\w-]{16,}+|xox[a-z]-[\w-]{10,}+"  # models, Slack
    r"|AIza[\w-]{30,}+|ya29\.[\w-]{16,}+|npm_[A-Za-z0-9]{30,}+|pypi-[\w-]{16,}+|dckr_pat_[\w-]{16,}+"
    r"|sha256~[\w-]{16,}+|nvapi-[\w-]{16,}+|wandb_v1_\w{16,}+"
    r"|eyJ[\w-]{4,}+\.[\w-]{4,}+(?:\.[\w-]*+)*+"  # JWT
    r")"
)
# Between a name and its value, in texts, JSON, JSON within JSON, and Python's repr.
_COLON = r"\\{0,3}[\"']?\s{0,3}:\s{0,3}(?:b(?=[\"']))?\\{0,3}[\"']?"
_IS = r"\\{0,3}[\"']?[ \t]{0,3}[=:][ \t]{0,3}(?:b(?=[\"']))?(\\{0,3}[\"'])?"
_HEADER = re.compile(
    r"(?i)((?<![\w-])(?:proxy-)?authorization\\{0,3}[\"']?\s{0,3}[:=]\s{0,3}(?:b(?=[\"']))?\\{0,3}[\"']?)"
    r"(?:(?:bearer|basic|token|digest|negotiate|apikey|aws4-hmac-sha256)\s[^\"'\r\n]*+|[^\s\"',;]++)"
)
_COOKIES = re.compile(rf"(?i)((?<![\w-])(?:set-)?cookie{_COLON})[^\"'\r\n]++")
_SCHEME = re.compile(
    r"(?i)(?<![\w-])(bearer|basic)(\s{1,3}|%20)(?!(?:tokens?|auth\w*|scheme|realm|credentials?|is|was|not|or|and)\b)"
    r"([^\s\"',;<>\\]{3,}+)"
)
_NAMED = re.compile(rf"(?<![\w.-])(-{{0,2}}[^\W\d][\w.-]*+)({_IS})")
_FLAG = re.compile(r"(?<![\w.-])(--?[^\W\d][\w.-]*+)([ \t]{1,3}|\\{0,3}[\"'],[ \t]{0,3}\\{0,3}[\"'])")
_BARE = re.compile(r"[^\s\"',;&]++")
_FLAGGED = re.compile(r"(?!-)[^\s\"']++")


def redact_text(text: object, known: Iterable[str] = ()) -> str:
    """``text`` with ``***`` for every secret in it: each of the ``known`` values, passwords and signatures in
    URLs, credentials of headers, private keys, tokens of a known form, and what is assigned to a name that
    says so (``api_key=...``, ``"password": "..."``, ``--token ...``).
    """
    whole = hide_known(text if isinstance(text, str) else _text(text), known)
    if "PRIVATE KEY" in whole:
        whole = _PEM.sub(HIDDEN, whole)
    if "//" in whole:
        whole = _BODY_IN_TEXT.sub(_userinfo, whole)
    whole = _TOKENS.sub(HIDDEN, whole)
    if "=" in whole:
        whole = _QUERY_IN_TEXT.sub(_parameter, whole)
    if "=" in whole or ":" in whole:
        whole = _HEADER.sub(rf"\1{HIDDEN}", whole)
        whole = _COOKIES.sub(rf"\1{HIDDEN}", whole)
        whole = _assigned(whole)
    if "-" in whole:
        whole = _flags(whole)
    return _SCHEME.sub(rf"\1\2{HIDDEN}", whole)


def hide_known(text: str, known: Iterable[str]) -> str:
    """``text`` without these values alone: for what must stay whole otherwise, such as JSON or HTML."""
    for value in spellings(known):
        text = _without(text, value)
    return text


def hide_known_in(value: Any, known: Iterable[str]) -> Any:
    """A plain value with `hide_known` done to every text in it, names of fields included."""
    known = (*known,)
    return _in_texts(value, lambda text: hide_known(text, known), known)


def _in_texts(value: Any, change: Callable[[str], str], known: Iterable[str]) -> Any:
    """A plain value with every text in it changed, and without the ``known`` values in names of fields."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {
            hide_known(name, known) if isinstance(name, str) else name: _in_texts(inner, change, known)
            for name, inner in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_in_texts(inner, change, known) for inner in value]
    return value


def _without(text: str, value: str) -> str:
    if len(value) >= 8 or value not in text:
        return text.replace(value, HIDDEN)
    # A short one is a word of its own: the password `test` is not in `pytest`.
    return re.sub(rf"(?<!\w){re.escape(value)}(?!\w)", HIDDEN, text)


def spellings(known: Iterable[str]) -> list[str]:
    """Each value as it may stand in a text, the longest first: as it is, in JSON, in a URL, in base64, alone
    and within something longer, and each line of several."""
    values = {v for v in known if isinstance(v, str) and len(v) >= KNOWN_FROM and v != HIDDEN}
    return _spellings(frozenset(values))


@lru_cache(maxsize=64)
def _spellings(values: frozenset[str]) -> list[str]:
    texts: set[str] = set()
    for value in values:
        raw = value.encode("utf-8", "surrogatepass")
        texts |= {
            value,
            value.strip(),
            json.dumps(value)[1:-1],
            json.dumps(value, ensure_ascii=False)[1:-1],
            repr(value)[1:-1],
            *(_quoted(raw, plain, form) for plain in (b"-._~/", b"-._~") for form in ("%{:02X}", "%{:02x}")),
            _quoted(raw, b"-._~", "%{:02X}").replace("%20", "+"),
            *_in_base64(raw),
        }
        texts |= {line.strip() for line in value.splitlines() if len(line.strip()) >= 16}
    return sorted((v for v in texts if len(v) >= KNOWN_FROM and v.strip("*")), key=lambda v: (-len(v), v))


def _quoted(raw: bytes, plain: bytes, form: str) -> str:
    return "".join(chr(b) if (chr(b).isalnum() and b < 128) or b in plain else form.format(b) for b in raw)


def _in_base64(raw: bytes) -> Iterator[str]:
    """All of it, and the digits that are its own where other bytes stand around it (``user:password``)."""
    yield base64.b64encode(raw).decode()
    yield base64.urlsafe_b64encode(raw).decode()
    if len(raw) < _LONG:
        return
    for before in range(3):
        after = -(before + len(raw)) % 3
        text = base64.b64encode(bytes(before) + raw + bytes(after)).decode()
        inner = text[before + (before > 0) : len(text) - after - (after > 0)]
        yield inner
        yield inner.translate(_URLSAFE)


_LONG = 8
"""Bytes of a value that is looked for within longer ones."""
_URLSAFE = str.maketrans("+/", "-_")


def _assigned(text: str) -> str:
    pieces: list[str] = []
    done = 0
    for match in _NAMED.finditer(text):
        start, quote = match.end(), match[3]
        if start < done or _ERRORS.search(match[1]) or not names_a_secret(match[1]):
            continue
        value = _UNTIL[quote[-1]].match(text, start) if quote else _BARE.match(text, start)
        if value is None or not _is_assignment(match, value[0], text):
            continue
        pieces += [text[done:start], HIDDEN]
        done = value.end()
    return "".join([*pieces, text[done:]]) if pieces else text


_ERRORS = re.compile(r"(?:Error|Exception|Warning)$")  # `KeyError: 'loss'`


def _is_assignment(match: re.Match[str], value: str, text: str) -> bool:
    """True if the match is an assignment, not prose: ``api_key=abc`` always, ``token: expected ','`` not."""
    name = match[1]
    if not hidden_value(name, value.strip("\\")):
        return False
    if match[3] or match[2][:1] in ("\\", '"', "'"):
        return True
    if "=" in match[2]:
        return _strong(name) or not (_NUMBER.fullmatch(value) or _CODE.match(value))
    if value.strip(".,;") in _AFTER_A_NOUN:
        return False  # `environment.API_KEY: expected text`
    before = text[max(0, match.start() - 200) : match.start()]
    begins_line = not before.rpartition("\n")[2].strip(" -")
    return (begins_line and _strong(name)) or _looks_random(value)


# `sorted(rows, key=lambda row: ...)`, `token=self.token` in a traceback.
_CODE = re.compile(r"lambda$|[a-z_]+(?:\.[a-z_]+)*[(\[]|[a-z_]+(?:\.[a-z_]+)+$")


def _strong(name: str) -> bool:
    """True if the name is a secret's without doubt; ``key``, ``token`` and such may be anything."""
    return bool(_INSIDE_A_WORD.search(name.lower())) or len(_WORDS.findall(name)) > 1


def _looks_random(value: str) -> bool:
    value = value.rstrip(".:!?)]}")
    kinds = (str.isdigit, str.islower, str.isupper)
    mixed = sum(any(map(kind, value)) for kind in kinds) >= 2
    return len(value) >= 8 and mixed and any(map(str.isdigit, value))


_UNTIL = {quote: re.compile(rf"[^{quote}\r\n]++") for quote in "\"'"}


def _flags(text: str) -> str:
    # `--key` alone is the name of a run in our own command lines.
    pieces: list[str] = []
    done = 0
    for match in _FLAG.finditer(text):
        name = match[1]
        if match.start() < done or name == "--key" or not name.startswith("--") or not names_a_secret(name):
            continue
        value = _FLAGGED.match(text, match.end())
        if value is None or not hidden_value(name, value[0].strip("\\")) or _prose(match, value[0]):
            continue
        pieces += [text[done : match.end()], HIDDEN]
        done = value.end()
    return "".join([*pieces, text[done:]]) if pieces else text


def _prose(match: re.Match[str], word: str) -> bool:
    """``--token is ...``: a sentence about an option."""
    return not match[2].strip() and word in _AFTER_A_NOUN


_AFTER_A_NOUN = frozenset({
    "a", "an", "and", "as", "for", "from", "has", "in", "is", "must", "needs", "not", "of", "on", "or",
    "that", "the", "to", "was", "which", "with", "absent", "differs", "expected", "holds", "invalid", "it",
    "missing", "no", "required", "unknown",
})  # fmt: skip


# --- values -----------------------------------------------------------------------------------------------

# In a job and in objects of a cluster these only sound like secrets: they name one, or mean something else.
_STRUCTURE = frozenset({
    "key", "keys", "topologyKey", "matchLabelKeys", "secrets", "secretName", "secretRef",
    "secretKeyRef", "secret", "imagePullSecrets", "imagePullSecret", "authorization", "token_type",
    "serviceAccountToken", "automountServiceAccountToken", "projected", "matchExpressions",
})  # fmt: skip
_ENVIRONMENTS = frozenset({"environment", "env", "environ", "data", "stringData", "binaryData"})


def redact_job(fields: object) -> Any:
    """A copy of any plain value (a job's fields, a manifest, a record, an event) that may be shown.

    Variables of an environment, entries ``{name, value}``, values under names of secrets, arguments that
    follow such an option (``--api-key=...``, ``[--token, ...]``), and all texts as `redact_text` does.
    """
    return _Walk().value(fields)


def redact_message(path: str, message: str) -> str:
    """A message about the field at ``path``. For a secret field, quoted values are removed."""
    field = path.rpartition(".")[2].partition("[")[0]
    if names_a_secret(field) and field not in _STRUCTURE:
        message = _QUOTED.sub(HIDDEN, message)
    return redact_text(message)


_QUOTED = re.compile(r"'[^']*+'|\"[^\"]*+\"|\b[0-9][\w.+-]*+|[\[{].*+", re.DOTALL)


def redact_texts(value: Any, known: Iterable[str] = ()) -> Any:
    """A plain value with `redact_text` done to every text in it, whatever it stands under: for results that
    programs read, where a name such as ``token`` may be a metric's. No name holds a ``known`` value.
    """
    known = (*known,)
    return _in_texts(value, lambda text: redact_text(text, known), known)


def secret_values(fields: object) -> tuple[str, ...]:
    """The whole values that `redact_job` hides, and the passwords and signatures of URLs, for
    `redact_text(..., known=...)`: a job's own secrets in messages of others.
    """
    walk = _Walk()
    walk.value(fields)
    return tuple(sorted({v for v in walk.hidden if len(v) >= KNOWN_FROM}))


class _Walk:
    """One pass over a value. Each container is visited once, however often it is used: neither cycles nor
    aliases grow."""

    def __init__(self) -> None:
        self.hidden: list[str] = []
        self._seen: dict[tuple[int, str], Any] = {}
        self._depth = 0

    def value(self, value: Any) -> Any:
        if value is None or isinstance(value, (bool, int, float)):
            return value
        if isinstance(value, str):
            return self._words(value)
        if isinstance(value, Mapping):
            return self._redact_once(value, "mapping", self._mapping)
        if isinstance(value, (list, tuple)):
            return self._redact_once(value, "list", self._list)
        return redact_text(value)

    def environment(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return self._redact_once(value, "environment", self._environment)
        return self.value(value)

    def _redact_once(self, value: Any, kind: str, copy: Callable[[Any], Any]) -> Any:
        at = (id(value), kind)
        if at in self._seen:
            return self._seen[at]
        if self._depth >= DEPTH:
            return HIDDEN
        self._seen[at] = HIDDEN  # of what holds itself
        self._depth += 1
        try:
            self._seen[at] = copy(value)
        except Exception:  # a broken mapping: its author's code raises
            self._seen[at] = HIDDEN
        finally:
            self._depth -= 1
        return self._seen[at]

    def _words(self, text: str) -> str:
        if "//" in text:
            self.hidden += _of_urls(text)
        return redact_text(text)

    def _hide(self, value: Any) -> str:
        self.hidden.append(value if isinstance(value, str) else _text(value))
        return HIDDEN

    def _named(self, name: Any, value: Any) -> Any:
        return self._hide(value) if _is_plain(value) and hidden_value(name, value) else self.value(value)

    def _environment(self, variables: Mapping[Any, Any]) -> dict[Any, Any]:
        return {name: self._named(name, value) for name, value in variables.items()}

    def _mapping(self, fields: Mapping[Any, Any]) -> dict[Any, Any]:
        secret_object = fields.get("kind") == "Secret"
        named = fields.get("name") if "value" in fields else None
        shown: dict[Any, Any] = {}
        for name, value in fields.items():
            about = named if name == "value" else None if name in _STRUCTURE else name
            if secret_object and name in ("data", "stringData") and isinstance(value, Mapping):
                shown[name] = {key: self._hide(inner) for key, inner in value.items()}
            elif name in _ENVIRONMENTS and isinstance(value, Mapping):
                shown[name] = self.environment(value)
            elif isinstance(value, (list, tuple)) and names_a_secret(about):
                shown[name] = [self._named(about, inner) for inner in value]
            else:
                shown[name] = self._named(about, value)
        return shown

    def _list(self, values: list[Any] | tuple[Any, ...]) -> list[Any]:
        shown: list[Any] = []
        option: str | None = None
        for value in values:
            is_value = option is not None and isinstance(value, str) and not value.startswith("-")
            if is_value and hidden_value(option, value):
                shown.append(self._hide(value))
                option = None
                continue
            option = _option(value)
            shown.append(self._argument(value) if isinstance(value, str) else self.value(value))
        return shown

    def _argument(self, word: str) -> str:
        name, equals, value = word.partition("=")
        if equals and value and not re.search(r"\s", name) and hidden_value(name.lstrip("-"), value):
            return f"{name}={self._hide(value)}"
        return self._words(word)


def _option(value: Any) -> str | None:
    """The name of an option whose value is the next argument."""
    if not isinstance(value, str) or not value.startswith("-") or "=" in value or re.search(r"\s", value):
        return None
    name = value.lstrip("-")
    return name if names_a_secret(name) else None


def _is_plain(value: Any) -> bool:
    return isinstance(value, (str, int, float, bytes)) and not isinstance(value, bool)


def _text(value: object) -> str:
    try:
        return str(value)
    except Exception:  # whatever its author's __str__ raises
        return f"<{type(value).__name__}>"
