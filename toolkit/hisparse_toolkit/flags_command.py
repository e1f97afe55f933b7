"""`hisparse flags`: judge a pasted vLLM command, say what is found."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TextIO, cast

from hisparse.errors import SpecError
from hisparse.flags.answers import HISPARSE_FLAG, POOL_SIZE
from hisparse.flags.arguments import release_of
from hisparse.flags.containers import manifest_text
from hisparse.flags.judge import judge, judge_manifest, judge_words
from hisparse.flags.known import RELEASES
from hisparse.flags.verdict import Item, Kind, Report, Severity
from hisparse.units import shortened
from hisparse_toolkit.problems import BadInputError, ExitCode, NoAnswerError, NotFoundOutError, Problem, bad
from hisparse_toolkit.streams import print_json, tell

SCHEMA: Final = "hisparse.dev/flags/v1"
STDIN: Final = "-"
MAX_BYTES: Final = 256 * 1024
"""More than any command line that Linux starts (MAX_ARG_STRLEN is 128 KiB)."""

CODES: Final = {
    Severity.FINE: ExitCode.YES,
    Severity.WARNING: ExitCode.WARNING,
    Severity.REFUSED: ExitCode.NO,
}
VERDICTS: Final = {Severity.FINE: "Ok", Severity.WARNING: "Warning", Severity.REFUSED: "Refused"}
NOT_JUDGED: Final = "Unknown"
"""The verdict, and an item's effect, where nothing was judged."""
_STYLES: Final = {Severity.FINE: "green", Severity.WARNING: "yellow", Severity.REFUSED: "bold red"}
_WIDEST_NAME: Final = 44


@dataclass(frozen=True)
class Question:
    """What was asked: the words on the command line or the file, and for which release."""

    words: tuple[str, ...] = ()
    file: str | None = None
    engine_version: str | None = None


def run_flags(question: Question, *, as_json: bool = False) -> ExitCode:
    """Answer on stdout, say on stderr why there is no answer, and return the exit code."""
    try:
        report = report_of(question)
    except NoAnswerError as error:
        if as_json:
            print_json(problem_document(error))
        for problem in error.problems:
            tell(_printable(str(problem)))
        return error.code
    if as_json:
        print_json(answer_document(report))
    else:
        _show(report)
    return code_of(report)


def code_of(report: Report) -> ExitCode:
    """The exit code of an answer: could not find out where all that it says is that nothing was judged."""
    return CODES[report.severity] if report.judged else ExitCode.UNKNOWN


def print_problem(error: NoAnswerError) -> None:
    """Print the document where there is no answer."""
    print_json(problem_document(error))


def report_of(question: Question) -> Report:
    """Judge what was asked. Raises NoAnswerError."""
    release = _release(question.engine_version)
    words = question.words
    try:
        if question.file is not None:
            if words:
                raise bad("--file", "and a command were both given; keep one of them")
            return _judged(_content(question.file), release)
        if words == (STDIN,):
            return _judged(_content(STDIN), release)
        if len(words) > 1:
            return judge_words(words, release)
        return _judged(words[0] if words else "", release)
    except SpecError as error:
        raise BadInputError.of(error) from None


def _judged(text: str, release: str | None) -> Report:
    manifest = manifest_text(text)
    if manifest is None:
        return judge(text, release)
    return judge_manifest(_documents(manifest), release)


def _documents(text: str) -> list[Any]:
    """The YAML of Kubernetes or compose. Raises SpecError."""
    # PyYAML costs time that a command line does not pay
    import yaml  # noqa: PLC0415

    try:
        return list(yaml.load_all(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f" in line {mark.line + 1}" if mark is not None else ""
        what = ", ".join(part for part in (error.context, error.problem) if part)
    except (yaml.YAMLError, ValueError, TypeError, RecursionError, OverflowError) as error:
        # of keys that cannot be keys, of dates that are none, of what is nested too deeply
        where, what = "", " ".join(str(error).split())
    raise SpecError(
        "command",
        f"looks like YAML, which cannot be read{where} ({what}); correct it, render a chart before you paste it, or "
        "paste the arguments alone, as in --max-model-len 131072",
    )


def _release(version: str | None) -> str | None:
    if version is None:
        return None
    release = release_of(version)
    if release is None:
        said = shortened(version)
        read = f"{RELEASES[0]} to {RELEASES[-1]}"
        raise bad("--engine-version", f'"{said}" is not a release whose flags have been read; set one from {read}')
    return release


def _content(path: str) -> str:
    """The text of a file or of stdin."""
    source = "stdin" if path == STDIN else path
    try:
        if path == STDIN:
            if cast("TextIO | None", sys.stdin) is None:
                raise NotFoundOutError([Problem(source, "is closed; name a file, or pass the command through a pipe")])
            content = sys.stdin.buffer.read(MAX_BYTES + 1)
        else:
            with Path(path).open("rb") as file:
                content = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        # a path may hold a null byte, which is a ValueError
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise bad(source, f"cannot be read ({why}); name a file that can, or - for stdin") from None
    if len(content) > MAX_BYTES:
        raise bad(source, f"is larger than {MAX_BYTES // 1024} KiB, which is no command line; paste the command alone")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise bad(source, f"is not text: byte {error.start} is not UTF-8; paste the command as text") from None


# --- documents ----------------------------------------------------------------------------------------------------


def answer_document(report: Report) -> dict[str, Any]:
    """The document of an answer (docs/reference/flags-json.md)."""
    return {
        "schema": SCHEMA,
        "verdict": _verdict(report),
        "exitCode": int(code_of(report)),
        "errors": [],
        "engineVersion": report.release,
        "engineVersionFrom": report.release_from,
        "items": [_item(item) for item in report.items],
        "notJudged": list(report.others),
    }


def problem_document(error: NoAnswerError) -> dict[str, Any]:
    """The document where there is no answer."""
    return {
        "schema": SCHEMA,
        "verdict": error.word,
        "exitCode": int(error.code),
        "errors": [{"field": problem.field, "message": problem.message} for problem in error.problems],
        "engineVersion": None,
        "engineVersionFrom": None,
        "items": [],
        "notJudged": [],
    }


def _verdict(report: Report) -> str:
    return VERDICTS[report.severity] if report.judged else NOT_JUDGED


def _effect(item: Item) -> str:
    """What an item alone would make of the verdict."""
    return NOT_JUDGED if item.kind is Kind.NOT_JUDGED else VERDICTS[item.severity]


def _item(item: Item) -> dict[str, Any]:
    return {
        "name": item.name,
        "value": item.value or None,
        "kind": item.kind.value,
        "effect": _effect(item),
        "message": item.says or None,
        "instead": item.instead or None,
        "source": item.source or None,
        "operator": item.operator or None,
    }


# --- screen -------------------------------------------------------------------------------------------------------


def headline(report: Report) -> str:
    """What the whole comes to, in one sentence."""
    if not report.judged:
        return "nothing was judged: only the flags of vllm serve are known here"
    counts = Counter(item.severity for item in report.items)
    if refused := counts[Severity.REFUSED]:
        return f"vLLM {report.release} does not start with this: {_count(refused, 'fault')}"
    if warned := counts[Severity.WARNING]:
        return (
            f"vLLM {report.release} starts with this, and {_count(warned, 'thing')} in it {_is(warned)} not as written"
        )
    if any(item.kind is Kind.NOT_JUDGED for item in report.items):
        return f"vLLM {report.release} knows everything that was judged, which is not all of this"
    return f"vLLM {report.release} knows everything in this"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _is(number: int) -> str:
    return "is" if number == 1 else "are"


def _show(report: Report) -> None:
    # rich costs a tenth of a second, which --json does not pay
    from rich.text import Text  # noqa: PLC0415

    from hisparse_toolkit.paint import console_for  # noqa: PLC0415

    console = console_for()
    # JSON is pasted, so it stands whole below the table
    pasted = list(dict.fromkeys(item.instead for item in report.items if "{" in item.instead))
    with console.capture() as capture:
        verdict = _verdict(report).upper()
        style = f"bold {_STYLES[report.severity if report.judged else Severity.WARNING].removeprefix('bold ')}"
        console.print(Text.assemble((verdict, style), "  ", (headline(report), "bold")))
        console.print(_table(report.items, pasted))
        for place, text in enumerate(pasted, start=1):
            # what somebody pastes is never broken over lines by us
            console.print(Text.assemble((f"({place}) ", "cyan"), _printable(text)), soft_wrap=True)
        if any(HISPARSE_FLAG in text for text in pasted):
            console.print(Text(f"{POOL_SIZE}.", style="dim"))
        for line in _notes(report):
            console.print(Text(line, style="dim"))
    # tables pad their lines; a file or a diff should not hold that
    for line in capture.get().splitlines():
        console.file.write(f"{line.rstrip()}\n")


def _table(items: Sequence[Item], pasted: Sequence[str]) -> Any:  # noqa: ANN401  rich is not loaded here
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold", max_width=_WIDEST_NAME)
    table.add_column(overflow="fold")
    for item in items:
        text = Text(kind_words(item))
        if item.says:
            text.append(f": {_printable(item.says)}")
        if item.instead:
            text.append("\ninstead: ", style="cyan")
            text.append(
                f"({pasted.index(item.instead) + 1}) below" if item.instead in pasted else _printable(item.instead)
            )
        if item.source and item.severity is not Severity.FINE:
            text.append(f"\n({item.source})", style="dim")
        name = Text(shortened(_printable(item.name)), style="bold")
        if item.value:
            name.append(f" {shortened(_printable(item.value))}", style="not bold")
        style = "dim" if item.kind is Kind.NOT_JUDGED else _STYLES[item.severity]
        table.add_row(Text(_effect(item).lower(), style=style), name, text)
    return table


def _printable(text: str) -> str:
    """A text of strangers as it can be shown: what would steer the terminal is a blank."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def kind_words(item: Item) -> str:
    """NeverExisted as words: never existed."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", item.kind.value).lower()


def _notes(report: Report) -> list[str]:
    notes = [f"Judged for vLLM {report.release}: {report.release_from}."]
    if report.others:
        notes.append(f"Not vLLM, and not judged: {_printable(', '.join(dict.fromkeys(report.others)))}.")
    owned = sum(bool(item.operator) for item in report.items)
    if owned:
        notes.append(
            f"In a cluster, hisparse's operator sets or refuses {owned} of these itself; --json says which and why."
        )
    return notes
