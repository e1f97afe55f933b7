"""The arguments of a command, told apart as vLLM's parser tells them (utils/argparse_utils.py and argparse).

Underscores of a name are dashes, what stands before a dot names a JSON argument, and a unique beginning is completed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from hisparse.flags.arguments import Flag, Takes, flags_of, takes_in_history
from hisparse.flags.shell import Word
from hisparse.flags.typography import DASHES

_LEVEL: Final = re.compile(r"-O(?:=?)([0-3])")


@dataclass(frozen=True)
class Given:
    """One flag of a command, with the words that belong to it. `flag` is None where the release has no such flag."""

    word: Word
    name: str
    """As the parser looks it up."""
    dotted: str = ""
    """What stands after the first dot: a key of a JSON argument."""
    value: Word | None = None
    more: tuple[Word, ...] = ()
    """The further values of a flag that takes many."""
    flag: Flag | None = None
    completed: bool = False
    """`name` is only the beginning of `flag`."""
    attached: bool = False
    """The value was written with =."""

    @property
    def written(self) -> tuple[Word, ...]:
        """All its values."""
        return () if self.value is None else (self.value, *self.more)

    @property
    def shown(self) -> str:
        """The values as one text."""
        return " ".join(word.text for word in self.written)


def read_arguments(words: Sequence[Word], release: str) -> tuple[list[Given], list[Word]]:
    """The flags and the other words of a command line, as argparse would tell them apart."""
    given: list[Given] = []
    positionals: list[Word] = []
    place = 0
    while place < len(words):
        word = words[place]
        place += 1
        if word.text == "--":
            positionals += words[place:]
            break
        if not _is_flag(word):
            positionals.append(word)
            continue
        one = _named(word, release)
        following: list[Word] = []
        while place + len(following) < len(words) and not _is_flag(words[place + len(following)]):
            following.append(words[place + len(following)])
        own = _own_values(one, following)
        if own:
            one = replace(one, value=own[0], more=tuple(own[1:]))
        place += len(own)
        given.append(one)
    return given, positionals


def _is_flag(word: Word) -> bool:
    text = word.text
    if len(text) < 2 or text[0] not in "-" + DASHES:  # noqa: PLR2004
        return False
    # argparse: a negative number is a value, and so is what holds a blank
    return not re.fullmatch(r"-\d+|-\d*\.\d+", text) and " " not in text.split("=", 1)[0]


def _named(word: Word, release: str) -> Given:
    flags = flags_of(release)
    head, equals, tail = word.text.partition("=")
    value = replace(word, text=tail) if equals else None
    if not head.startswith("--"):
        return _short(word, head, value, flags)
    name, _, dotted = head.partition(".")
    name = name.replace("_", "-")
    found = Given(word, name, dotted.rstrip("+"), value, flag=flags.get(name), attached=value is not None)
    if found.flag is not None or len(name) < 3:  # noqa: PLR2004  the two dashes and one letter
        return found
    whole = completions(name, flags)
    if len(whole) == 1:
        return replace(found, flag=whole[0], completed=True)
    return found


def _short(word: Word, head: str, value: Word | None, flags: Mapping[str, Flag]) -> Given:
    level = _LEVEL.fullmatch(word.text)
    if level and "--optimization-level" in flags:
        return Given(
            word, "-O", "", replace(word, text=level.group(1)), flag=flags["--optimization-level"], attached=True
        )
    if word.text == "-O" and "--optimization-level" in flags:
        return Given(word, "-O", flag=flags["--optimization-level"])
    name, _, dotted = head.partition(".")
    if name in flags:
        return Given(word, name, dotted.rstrip("+"), value, flag=flags[name], attached=value is not None)
    letter = head[:2]
    if len(head) > 2 and letter in flags and flags[letter].takes is Takes.ONE:  # noqa: PLR2004  -n2
        return Given(word, letter, "", replace(word, text=word.text[2:]), flag=flags[letter], attached=True)
    found = Given(word, head, "", value, attached=value is not None)
    if found.attached:
        # argparse completes "-t 8" and not "-t=8"
        return found
    whole = completions(head, flags)
    return replace(found, flag=whole[0], completed=True) if len(whole) == 1 else found


def completions(name: str, flags: Mapping[str, Flag]) -> list[Flag]:
    """What argparse would complete a beginning to; spellings of one argument count as several, as they do there."""
    return [flag for known, flag in flags.items() if known.startswith(name)]


def _own_values(one: Given, following: list[Word]) -> list[Word]:
    if one.attached:
        return []
    if one.dotted:
        return following[:1]
    takes = one.flag.takes if one.flag is not None else takes_in_history(one.name) or Takes.ONE
    if takes is Takes.MANY:
        return following
    return following[:1] if takes in (Takes.ONE, Takes.OPTIONAL) else []
