"""A pasted piece of shell as simple commands: words and assignments, the way a POSIX shell would split them.

Nothing is expanded here: a word that holds $NAME, $(...) or a backtick is `opaque`, since only the shell that it was
written for knows its value. Where a paste has broken a line, the command goes on and the fault is kept.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from hisparse.errors import SpecError

FIELD = "command"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ARRAY_HEAD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=")
_BLANK = " \t\r\f\v\u00a0"


@dataclass(frozen=True)
class Word:
    """One word without its quotes."""

    text: str
    line: int = 1
    opaque: bool = False
    """Part of it is filled in by the shell."""
    quoted: bool = False
    """Some of it was quoted, so a dash or NAME= in it is not by chance."""
    elements: tuple[Word, ...] | None = None
    """What stands between the brackets of NAME=( ... ), which `text` leaves out."""


@dataclass(frozen=True)
class Command:
    """One simple command; `faults` are those of the paste, each a sentence.

    arrays are the words of the form NAME=( ... ) and NAME+=( ... ) before it, or alone.
    """

    words: tuple[Word, ...]
    assignments: tuple[tuple[str, Word], ...] = ()
    arrays: tuple[Word, ...] = ()
    faults: tuple[str, ...] = ()


def commands(text: str) -> tuple[Command, ...]:
    """The commands of a text, in order. Raises SpecError where a quote or bracket is not closed."""
    return tuple(_rejoined(_Reader(text).read()))


def assignment(word: Word) -> tuple[str, Word] | None:
    """Name and value of NAME=VALUE."""
    match = _NAME.match(word.text)
    if match is None or word.elements is not None or not word.text[match.end() :].startswith("="):
        return None
    return match.group(), Word(word.text[match.end() + 1 :], word.line, word.opaque, word.quoted)


def _rejoined(lines: list[Command]) -> list[Command]:
    """A line that begins with a flag belongs to the line before: the backslash was lost on the way."""
    groups: list[list[Command]] = []
    for one in lines:
        lost = bool(groups) and not one.assignments and one.words[:1] != () and one.words[0].text.startswith("-")
        if lost and groups[-1][0].words:
            groups[-1].append(one)
        else:
            groups.append([one])
    return [_joined(group) for group in groups]


def _joined(lines: list[Command]) -> Command:
    """One command of several lines; of the faults the first of its kind is enough."""
    first = lines[0]
    if len(lines) == 1:
        return first
    faults = [fault for one in lines for fault in one.faults][:1]
    if not faults:
        line = lines[1].words[0].line
        faults = [f"line {line - 1} does not end in a backslash, so the shell would not read line {line} with it"]
    return Command(tuple(word for one in lines for word in one.words), first.assignments, first.arrays, tuple(faults))


@dataclass
class _Reader:
    """Walks once over the text."""

    text: str
    at: int = 0
    line: int = 1
    found: list[Command] = field(default_factory=list)
    words: list[Word] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    # the word that is being read; None between words
    letters: list[str] | None = None
    begins: int = 1
    opaque: bool = False
    quoted: bool = False

    def read(self) -> list[Command]:
        while self.at < len(self.text):
            self._step(self.text[self.at])
        self._end_command()
        return self.found

    def _step(self, letter: str) -> None:
        if letter == "\\":
            self._backslash()
        elif letter == "'":
            self._single()
        elif letter == '"':
            self._double()
        elif letter in "$`":
            self._expansion(letter)
        elif letter == "\n":
            self._end_command()
            self.at += 1
            self.line += 1
        elif letter in _BLANK:
            self._end_word()
            self.at += 1
        elif letter == "#" and self.letters is None:
            self._skip_comment()
        elif letter in "<>" or self.text.startswith("&>", self.at):
            self._redirect()
        elif letter == "(" and self._begins_array():
            self._array()
        elif letter in ";&|()":
            self._end_command()
            self.at += 1
        else:
            self._take(letter)

    def _take(self, letters: str, step: int = 1) -> None:
        if self.letters is None:
            self.letters, self.begins, self.opaque, self.quoted = [], self.line, False, False
        self.letters.append(letters)
        self.at += step

    def _backslash(self) -> None:
        if self.text.startswith(("\n", "\r\n"), self.at + 1):
            self.at += 2 if self.text[self.at + 1] == "\n" else 3
            self.line += 1
            return
        end = self.at + 1
        while end < len(self.text) and self.text[end] in _BLANK:
            end += 1
        blanks = end - self.at - 1
        if blanks and self.text[end : end + 1] in ("\n", ""):
            self._end_word()
            self.faults.append(
                f"line {self.line} has blanks after its backslash, so the shell would end the command there"
            )
            self.at += 2 + blanks
            self.line += 1
            return
        self._take(self.text[self.at + 1 : self.at + 2], 2)

    def _single(self) -> None:
        end = self.text.find("'", self.at + 1)
        if end < 0:
            raise self._open("single quote (')")
        inner = self.text[self.at + 1 : end]
        self._take(inner, end + 1 - self.at)
        self.quoted = True
        self.line += inner.count("\n")

    def _double(self) -> None:
        start = self.line
        self._take("", 1)
        self.quoted = True
        while self.at < len(self.text):
            letter = self.text[self.at]
            if letter == '"':
                self.at += 1
                return
            if letter == "\\" and self.text[self.at + 1 : self.at + 2] in ("\\", '"', "$", "`", "\n"):
                after = self.text[self.at + 1]
                self._take("" if after == "\n" else after, 2)
                self.line += after == "\n"
            elif letter in "$`":
                self._expansion(letter)
            else:
                self._take(letter)
                self.line += letter == "\n"
        self.line = start
        raise self._open('double quote (")')

    def _expansion(self, letter: str) -> None:
        begin = self.at
        if letter == "`":
            end = self.text.find("`", begin + 1)
            if end < 0:
                raise self._open("backtick (`)")
            end += 1
        elif self.text[begin + 1 : begin + 2] in ("(", "{"):
            end = self._closing(begin + 1)
        else:
            name = _NAME.match(self.text, begin + 1)
            end = name.end() if name else begin + 1 + (self.text[begin + 1 : begin + 2] in tuple("@*#?0123456789"))
            if end == begin + 1:
                # a lone dollar stands for itself, and before a quote it changes nothing that matters here
                if self.text[end : end + 1] not in ("'", '"'):
                    self._take("$")
                else:
                    self.at += 1
                return
        inner = self.text[begin:end]
        self._take(inner, end - begin)
        self.opaque = True
        self.line += inner.count("\n")

    def _closing(self, begin: int) -> int:
        opening, closing = self.text[begin], ")" if self.text[begin] == "(" else "}"
        depth = 0
        for place in range(begin, len(self.text)):
            depth += (self.text[place] == opening) - (self.text[place] == closing)
            if depth == 0:
                return place + 1
        raise self._open(f"bracket (${opening})")

    def _begins_array(self) -> bool:
        head = "".join(self.letters or ())
        return not self.quoted and _ARRAY_HEAD.fullmatch(head) is not None

    def _array(self) -> None:
        """The words up to the closing bracket, over lines and comments."""
        head, begins = "".join(self.letters or ()), self.begins
        outer, self.words, self.letters = self.words, [], None
        start = self.line
        self.at += 1
        while self.at < len(self.text):
            letter = self.text[self.at]
            if letter == ")":
                self._end_word()
                self.at += 1
                self.words = [*outer, Word(head, begins, elements=tuple(self.words))]
                return
            if letter == "\n":
                self._end_word()
                self.at += 1
                self.line += 1
            elif letter in "(;&|<>":
                # no shell takes these here; what they stand in is judged as it is
                self._take(letter)
            else:
                self._step(letter)
        self.line = start
        raise self._open("bracket (()")

    def _skip_comment(self) -> None:
        end = self.text.find("\n", self.at)
        self.at = len(self.text) if end < 0 else end

    def _redirect(self) -> None:
        """Drop `2>&1`, `> file` and the like."""
        if self.letters is not None and "".join(self.letters).isdigit() and not self.quoted:
            self.letters = None
        self._end_word()
        match = re.compile(r"(?:&>>?|<<<|<<-?|<>|[<>]&|>>|>\||[<>])[ \t]*").match(self.text, self.at)
        self.at = match.end() if match else self.at + 1
        count = len(self.words)
        while self.at < len(self.text) and self.text[self.at] not in _BLANK + "\n;|<>()":
            if self.text[self.at] == "&":
                break
            self._step(self.text[self.at])
        self._end_word()
        del self.words[count:]

    def _end_word(self) -> None:
        if self.letters is not None:
            self.words.append(Word("".join(self.letters), self.begins, self.opaque, self.quoted))
            self.letters = None

    def _end_command(self) -> None:
        self._end_word()
        pairs = [assignment(word) for word in self.words]
        count = next(
            (place for place, pair in enumerate(pairs) if pair is None and self.words[place].elements is None),
            len(pairs),
        )
        words, assignments = tuple(self.words[count:]), tuple(pair for pair in pairs[:count] if pair is not None)
        arrays = tuple(word for word in self.words[:count] if word.elements is not None)
        if words or assignments or arrays:
            self.found.append(Command(words, assignments, arrays, tuple(self.faults[:1])))
            self.faults = []
        self.words = []

    def _open(self, what: str) -> SpecError:
        return SpecError(
            FIELD, f"line {self.line} opens a {what} that nothing closes; close it, or paste the whole command"
        )
