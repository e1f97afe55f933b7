"""`hisparse plan`: ask the planner, say what it answers."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hisparse.acceptance import advice
from hisparse.plan import Plan, Shortfall
from hisparse.planner import plan, smallest
from hisparse_toolkit.manifest import read_manifest
from hisparse_toolkit.plan_json import answer_document, problem_document
from hisparse_toolkit.problems import ExitCode, NoAnswerError
from hisparse_toolkit.question import Options, Question, question_of
from hisparse_toolkit.screen import screen_of, verdict_of
from hisparse_toolkit.streams import print_json, tell


@dataclass(frozen=True)
class View:
    """How the answer is shown."""

    as_json: bool = False
    plot: bool = False


def run_plan(file: str | None, options: Options, view: View) -> ExitCode:
    """Answer on stdout, say on stderr why there is no answer, and return the exit code."""
    try:
        manifest = read_manifest(file) if file is not None else None
        question = question_of(manifest, options)
    except NoAnswerError as error:
        if view.as_json:
            print_problem(error)
        for problem in error.problems:
            tell(problem)
        return error.code
    answer = answer_to(question)
    in_cluster = manifest is not None
    if in_cluster and isinstance(answer, Plan):
        # what the operator would say of the object, beside what the planner says of any
        answer = replace(answer, warnings=(*answer.warnings, *advice(question.spec, question.model)))
    if view.as_json:
        print_json(answer_document(question, answer, in_cluster=in_cluster))
    else:
        _show(question, answer, view, in_cluster=in_cluster)
    return verdict_of(answer).code


def answer_to(question: Question) -> Plan | Shortfall:
    """The plan whose flags run on every kind of node that fits, as the operator chooses it; else what is nearest."""
    answers = [plan(question.model, node, question.target) for node in question.nodes]
    fitting = [one for one in answers if isinstance(one, Plan)]
    if fitting:
        return smallest(fitting)
    return min((one for one in answers if isinstance(one, Shortfall)), key=lambda one: one.distance)


def _show(question: Question, answer: Plan | Shortfall, view: View, *, in_cluster: bool) -> None:
    # rich costs a tenth of a second, which --json does not pay
    from hisparse_toolkit.paint import console_for, paint  # noqa: PLC0415

    console = console_for()
    paint(screen_of(question, answer, in_cluster=in_cluster), console)
    if view.plot and isinstance(answer, Plan):
        from rich.text import Text  # noqa: PLC0415

        from hisparse_toolkit.curve import curve_of  # noqa: PLC0415

        drawn = curve_of(
            answer,
            width=console.width,
            colour=console.is_terminal and not console.no_color,
            ascii_only=console.options.ascii_only,
        )
        console.print(Text.from_ansi(drawn))


def print_problem(error: NoAnswerError) -> None:
    """The JSON document where there is no answer."""
    print_json(problem_document(error))
