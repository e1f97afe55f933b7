"""`hisparse time`: how long a prefill takes, how fast decoding can be, and whether a published speed is possible."""

from __future__ import annotations

from hisparse_toolkit.manifest import read_manifest
from hisparse_toolkit.problems import ExitCode, NoAnswerError
from hisparse_toolkit.question import Options, question_of
from hisparse_toolkit.streams import print_json, tell
from hisparse_toolkit.time_answer import ClaimWords, claims_of, timing_of
from hisparse_toolkit.time_json import problem_document, timing_document


def run_time(file: str | None, options: Options, words: ClaimWords, *, as_json: bool) -> ExitCode:
    """Answer on stdout, say on stderr why there is no answer, and return the exit code."""
    try:
        claims = claims_of(words)
        manifest = read_manifest(file) if file is not None else None
        timing = timing_of(question_of(manifest, options), claims)
    except NoAnswerError as error:
        if as_json:
            print_problem(error)
        for problem in error.problems:
            tell(problem)
        return error.code
    if as_json:
        print_json(timing_document(timing))
    else:
        # rich costs a tenth of a second, which --json does not pay
        from hisparse_toolkit.paint import console_for  # noqa: PLC0415
        from hisparse_toolkit.time_paint import paint_time  # noqa: PLC0415
        from hisparse_toolkit.time_screen import time_screen_of  # noqa: PLC0415

        paint_time(time_screen_of(timing), console_for())
    return timing.verdict.code


def print_problem(error: NoAnswerError) -> None:
    """The JSON document where there is no answer."""
    print_json(problem_document(error))
