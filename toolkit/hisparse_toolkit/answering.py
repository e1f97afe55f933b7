"""How the planning commands answer: a sheet or a document on stdout, what is at fault on stderr, an exit code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from hisparse_toolkit.option_words import in_options
from hisparse_toolkit.problems import ExitCode, NoAnswerError
from hisparse_toolkit.sheet import Sheet, Tone
from hisparse_toolkit.streams import print_json, tell


@dataclass(frozen=True)
class Schema:
    """A JSON schema of ours: its name and the keys between `exitCode` and `errors`, which are never left out."""

    name: str
    keys: tuple[str, ...]


SCHEMAS: Final[Mapping[str, Schema]] = MappingProxyType(
    {
        "fit-context": Schema(
            "hisparse.dev/fit-context/v1",
            (
                "model",
                "node",
                "request",
                "requests",
                "maxTokens",
                "binds",
                "positions",
                "memoryTokens",
                "rope",
                "ways",
                "plan",
                "losses",
                "shortfall",
            ),
        ),
        "fit-gpus": Schema(
            "hisparse.dev/fit-gpus/v1", ("model", "request", "requests", "assumedScaling", "fleets", "refused")
        ),
        "compare": Schema("hisparse.dev/compare/v1", ("request", "assumedScaling", "rows", "losses")),
        "explain": Schema(
            "hisparse.dev/explain/v1", ("model", "node", "request", "assumedScaling", "limit", "sections")
        ),
        "check": Schema("hisparse.dev/check/v1", ("observedAt", "inventory", "findings")),
        "curve": Schema(
            "hisparse.dev/curve/v1", ("model", "node", "request", "assumedScaling", "mode", "kvCacheDtype", "points")
        ),
    }
)
"""By the command that prints it."""


@dataclass(frozen=True)
class Canvas:
    """Where a sheet will be drawn: columns, and whether colours and characters beyond ASCII are shown."""

    width: int
    colour: bool
    ascii_only: bool


@dataclass(frozen=True)
class Answer:
    """An answer in both forms; only the one that is asked for is made. verdict is the answer in one word.

    from_manifest: the sheet may name fields of the manifest; options otherwise.
    """

    tone: Tone
    verdict: str
    sheet: Callable[[Canvas], Sheet]
    body: Callable[[], Mapping[str, Any]]
    from_manifest: bool


def say(command: str, ask: Callable[[], Answer], *, as_json: bool) -> ExitCode:
    """Answer on stdout, say on stderr why there is no answer, and return the exit code."""
    try:
        answer = ask()
    except NoAnswerError as error:
        if as_json:
            print_problem(command, error)
        for problem in error.problems:
            tell(problem)
        return error.code
    if as_json:
        print_json(_document(SCHEMAS[command], answer))
    else:
        _show(answer)
    return answer.tone.code


def print_problem(command: str, error: NoAnswerError) -> None:
    """The JSON document where there is no answer: the same keys, and why."""
    schema = SCHEMAS[command]
    print_json(
        {
            "schema": schema.name,
            "verdict": error.word,
            "exitCode": int(error.code),
            **dict.fromkeys(schema.keys),
            "errors": [{"field": one.field, "message": one.message} for one in error.problems],
        }
    )


def _document(schema: Schema, answer: Answer) -> dict[str, Any]:
    body = answer.body()
    return {
        "schema": schema.name,
        "verdict": answer.verdict,
        "exitCode": int(answer.tone.code),
        **{key: body[key] for key in schema.keys},
        "errors": [],
    }


def _show(answer: Answer) -> None:
    # rich costs a tenth of a second, which --json does not pay
    from hisparse_toolkit.paint import console_for  # noqa: PLC0415
    from hisparse_toolkit.sheet_paint import paint_sheet  # noqa: PLC0415

    console = console_for()
    colour = console.is_terminal and not console.no_color
    canvas = Canvas(console.width, colour=colour, ascii_only=console.options.ascii_only)
    sheet = answer.sheet(canvas)
    paint_sheet(sheet if answer.from_manifest else sheet.worded(in_options), console)
