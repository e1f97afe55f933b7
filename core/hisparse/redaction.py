"""What may be shown of a text that others wrote: no secret, and nothing that breaks a line or a terminal.

Logs of engines, messages of API servers, kubelets and registries quote what they were given, and some of that is a
key. Two ways to know one: the values that a spec itself gives to names such as HF_TOKEN or --api-key, wherever they
turn up (`Redaction`), and the forms that keys have (`PLAIN`). What is left out is marked with HIDDEN. Redacting a
redacted text changes nothing, and so does cutting before redacting, as far as the spec's own values go.
"""

from __future__ import annotations

import base64
import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Final

HIDDEN: Final = "[hidden]"
SHORTEST: Final = 4
"""A value of fewer characters can't be told from ordinary text, and is no secret to anybody either."""
_ANYWHERE: Final = 8
"""From this length on a value is also looked for inside of words: no word holds it by chance."""
_CUT: Final = 6
"""So many characters of a value at the end (or beginning) of a text are a value that was cut off."""
_SENTENCE: Final = 512
_NO_VALUE: Final = frozenset({"true", "false", "none", "null", "auto", "default", HIDDEN})
_REFERENCE: Final = re.compile(r"\$\([^)]*\)")
"""$(NAME): the kubelet puts a variable there; the text itself is no secret."""

# --- names -----------------------------------------------------------------------------------------------------------

_WORDS: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_SECRET_ENDS: Final = (
    "password",
    "passwords",
    "passwd",
    "passphrase",
    "secret",
    "secrets",
    "credential",
    "credentials",
    "apikey",
    "authorization",
)
"""Of words, since names are also written in one: PGPASSWORD."""
_HARMLESS_LAST: Final = frozenset(
    {
        "name", "id", "ids", "count", "limit", "budget", "length", "len", "size", "type", "file", "path", "ref", "dir",
        "index", "mode", "level", "namespace",
    }
)  # fmt: skip
_HARMLESS_KEYS: Final = frozenset({"cache", "sort", "primary", "label", "index", "block", "topology"})


def names_a_secret(name: str) -> bool:
    """Whether a variable, flag or field of this name holds a secret: HF_TOKEN, --api-key, dbPassword."""
    lower = name.lower()
    if not any(hint in lower for hint in _HINTS):
        return False
    words = [word.lower() for word in _WORDS.findall(name)]
    if not words or words[-1] in _HARMLESS_LAST:
        return False
    if any(word.endswith(_SECRET_ENDS) for word in words) or words[-1].endswith(("token", "bearer", "auth")):
        return True
    if words[-1] in ("pass", "cookie", "cookies") or "webhook" in words:
        return True
    if len(words) == 1:
        return False
    is_key = words[-1] in ("key", "pat", "dsn", "pwd") and words[-2] not in _HARMLESS_KEYS
    return is_key or words[-2:] == ["api", "keys"]


# --- forms -----------------------------------------------------------------------------------------------------------

_WHOLE: Final = tuple(
    re.compile(pattern)
    for pattern in (
        r"-----BEGIN [A-Z ]*PRIVATE KEY-----(?:.|\n)*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
        r"(?<![A-Za-z0-9])hf_[A-Za-z0-9]{6,}",  # Hugging Face
        r"(?<![A-Za-z0-9])api_org_[A-Za-z0-9]{6,}",
        r"(?<![A-Za-z0-9])sk-[A-Za-z0-9_-]{6,}",  # OpenAI and those who copy it
        r"(?<![A-Za-z0-9])(?:gh[pousr]_|github_pat_|glpat-|npm_|nvapi-|xox[abprs]-|pypi-|dckr_pat_)[A-Za-z0-9_-]{6,}",
        r"(?<![A-Za-z0-9])(?:AKIA|ASIA)[A-Z0-9]{12,}",
        r"(?<![A-Za-z0-9])AIza[A-Za-z0-9_-]{20,}",
        r"(?<![A-Za-z0-9])eyJ[A-Za-z0-9_-]{6,}(?:\.[A-Za-z0-9_-]+)*",  # JSON web tokens
    )
)
_AFTER: Final = tuple(
    re.compile(pattern)
    for pattern in (
        r"(?P<keep>(?i:\bbearer)\s+)(?P<value>[A-Za-z0-9._~+/=-]+)",
        r"(?P<keep>(?i:\bauthorization)\\*[\"']?\s*[:=]\s*\\*[\"']?(?:(?i:basic|token|apikey)\s+)?)"
        r"(?P<value>[A-Za-z0-9._~+/=-]+)",
        # user:password@ of a URL; a bare user too, for some are tokens
        r"(?P<keep>\b[A-Za-z][A-Za-z0-9+.-]*://)(?P<value>[^\s/\"'<>]+)(?=@)",
        r"(?P<keep>[?&](?:(?i:x-amz-[a-z-]+|sig|signature|token|access_token|api_key|apikey|key))=)(?P<value>[^&\s\"']+)",
    )
)
_NAME: Final = re.compile(r"(?<![A-Za-z0-9_])(?P<flag>--?)?(?P<name>[A-Za-z_][\w.-]*)")
_HINTS: Final = (
    "pass", "pwd", "secret", "credential", "token", "key", "auth", "bearer", "pat", "dsn", "cookie", "webhook",
)  # fmt: skip
_ASSIGNED: Final = re.compile(
    r"(?:\\*[\"']?(?P<sign>\s*[:=]\s*)|\s+)"
    r"(?:(?P<list>\[\s*)?(?P<quote>\\*[\"'])(?P<quoted>(?:(?!(?P=quote))(?:\\.|[^\n]))*)|(?P<bare>[^\s,;\"']+))"
)
_MORE: Final = re.compile(r"(?:\\*[\"'])\s*,\s*(?P<quote>\\*[\"'])(?P<quoted>(?:(?!(?P=quote))(?:\\.|[^\n]))*)")
_VERBS: Final = frozenset(
    ("is", "was", "has", "and", "or", "must", "needs", "cannot", "can", "may", "in", "to", "of", "for", "with", "from")
)
_LOOKS_RANDOM: Final = re.compile(r"(?=.*[0-9])(?=.*[A-Za-z]).{6,}")


def _named_values(text: str) -> Iterator[tuple[int, int]]:
    """Where values stand that a text gives to a name of a secret: api_key='x', "password": "x", --token x."""
    for name in _NAME.finditer(text):
        # fields of our own, as in spec.model.huggingFace.tokenSecret.key: "..."
        if name["name"].startswith("spec.") or not names_a_secret(name["name"]):
            continue
        value = _ASSIGNED.match(text, name.end())
        if value is None or (value["sign"] is None and not name["flag"]):
            continue
        if value["bare"] is not None:
            # a colon after a word, or a word after a flag, is also how sentences go on
            colon, sentence = (value["sign"] or "").strip() == ":", value["sign"] is None and value["bare"] in _VERBS
            if not sentence and (not colon or _LOOKS_RANDOM.fullmatch(value["bare"])):
                yield value.span("bare")
            continue
        yield value.span("quoted")
        more: re.Match[str] | None = value if value["list"] else None
        while more is not None and (more := _MORE.match(text, more.end())) is not None:
            yield more.span("quoted")


@lru_cache(4096)
def _remembered(text: str) -> str:
    """A status says the same again in each pass."""
    return _without_forms(text)


def _without_forms(text: str) -> str:
    for pattern in _WHOLE:
        text = pattern.sub(HIDDEN, text)
    for pattern in _AFTER:
        text = pattern.sub(lambda match: f"{match['keep']}{HIDDEN}", text)
    return _replaced(text, _named_values(text))


def _replaced(text: str, spans: Iterable[tuple[int, int]]) -> str:
    parts, at = [], 0
    for start, end in sorted(spans):
        if start >= at and end > start and text[start:end].lower() not in _NO_VALUE:
            parts += [text[at:start], HIDDEN]
            at = end
    return "".join((*parts, text[at:]))


# --- values of a spec ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Redaction:
    """Hides these values, and everything that has the form of a secret."""

    values: tuple[str, ...] = ()

    @classmethod
    def of_spec(cls, spec: object) -> Redaction:
        """What a spec of a HiSparseInference (as YAML gave it, right or wrong) holds that is nobody's business."""
        found = dict.fromkeys(value for value in _secrets_of(spec) if _is_value(value))
        return cls(tuple(found))

    def over(self, text: str) -> str:
        """The text without secrets."""
        if self._pattern is not None:
            text = self._pattern.sub(HIDDEN, text)
            text = self._without_cut(text)
        return _remembered(text) if len(text) <= _SENTENCE else _without_forms(text)

    @cached_property
    def _pattern(self) -> re.Pattern[str] | None:
        forms = {form for value in self.values for form in _written(value)}
        # the longest first, so that of two that overlap nothing is left
        words = [
            re.escape(one) if len(one) >= _ANYWHERE else rf"(?<![A-Za-z0-9]){re.escape(one)}(?![A-Za-z0-9])"
            for one in sorted(forms, key=lambda one: (-len(one), one))
        ]
        return re.compile("|".join(words)) if words else None

    def _without_cut(self, text: str) -> str:
        """A message has a longest length, so that a value may begin or end outside of it."""
        for value in self.values:
            head = next((n for n in range(min(len(value), len(text)), _CUT - 1, -1) if text.endswith(value[:n])), 0)
            if head:
                text = text[:-head] + HIDDEN
            end = next((n for n in range(min(len(value), len(text)), _CUT - 1, -1) if text.startswith(value[-n:])), 0)
            if end:
                text = HIDDEN + text[end:]
        return text


PLAIN: Final = Redaction()
"""Knows forms alone."""


def _is_value(value: str) -> bool:
    return len(value) >= SHORTEST and value.lower() not in _NO_VALUE and _REFERENCE.fullmatch(value) is None


def _secrets_of(spec: object) -> Iterator[str]:
    engine, template = _at(spec, "engine"), _at(spec, "podTemplate")
    sidecars = [one for one in _list(_at(template, "sidecars")) if isinstance(one, Mapping)]
    for container in (engine, *sidecars):
        for variable in _list(_at(container, "env")):
            yield from _of_pair(_at(variable, "name"), _at(variable, "value"))
        for place in ("command", "args"):
            yield from _of_arguments([word for word in _list(_at(container, place)) if isinstance(word, str)])
    annotations = _at(template, "annotations")
    for name, value in annotations.items() if isinstance(annotations, Mapping) else ():
        yield from _of_pair(name, value)


def _of_pair(name: object, value: object) -> Iterator[str]:
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)  # a mistake that the API server quotes
    if not isinstance(name, str) or not isinstance(value, str):
        return
    if names_a_secret(name):
        yield value
        # a key in PEM is logged line by line
        yield from (line.strip() for line in value.splitlines() if len(line.strip()) >= _ANYWHERE)
    for match in re.finditer(r"://[^\s/:@]*:([^\s/]+)@", value):
        yield match[1]


def _of_arguments(words: list[str]) -> Iterator[str]:
    """--api-key=x, --api-key x y, and both in one word by mistake."""
    secret = False
    for word in words:
        if word.startswith("-"):
            flag, sign, value = _split(word)
            secret = names_a_secret(flag)
            yield from _of_pair(flag, value if sign else "")
        elif secret:
            yield word
        else:
            yield from _of_pair("", word)


def _split(word: str) -> tuple[str, str, str]:
    match = re.search(r"[=\s]", word)
    return (word[: match.start()], match[0], word[match.end() :].strip()) if match else (word, "", "")


def _written(value: str) -> Iterator[str]:
    """The value as others write it: quoted by Go, Python or JSON, in a URL, in base64."""
    yield value
    for quoted in (json.dumps(value), json.dumps(value, ensure_ascii=False), repr(value)):
        yield quoted[1:-1]
        yield json.dumps(quoted[1:-1])[1:-1]
    yield from (_percent(value, safe) for safe in ("-._~", "-._~/"))
    yield base64.b64encode(value.encode(errors="surrogatepass")).decode().rstrip("=")


def _percent(value: str, safe: str) -> str:
    octets = map(chr, value.encode(errors="surrogatepass"))
    return "".join(one if one in safe or (one.isascii() and one.isalnum()) else f"%{ord(one):02X}" for one in octets)


def _at(value: object, key: str) -> Any:  # noqa: ANN401 - JSON
    return value.get(key) if isinstance(value, Mapping) else None


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


# --- lines -----------------------------------------------------------------------------------------------------------

_COLOUR: Final = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
# control, format (such as right-to-left overrides), surrogates, separators of lines and paragraphs
_UNPRINTABLE: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def printable(text: str, keep: str = "\n\t") -> str:
    """The text without colours, and with any other character that moves a cursor shown as its number."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        one if one in keep or unicodedata.category(one) not in _UNPRINTABLE else _number(one)
        for one in _COLOUR.sub("", text)
    )


def one_line(text: str) -> str:
    """The same in one line: what others wrote may not look as if we had written it."""
    if text.isascii() and text.isprintable():
        return text
    return printable(re.sub(r"\s*[\r\n\u2028\u2029]+\s*", " ", text).replace("\t", " ").strip(), keep="")


def _number(character: str) -> str:
    return character.encode("unicode_escape").decode()
