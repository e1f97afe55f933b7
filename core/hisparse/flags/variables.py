"""Judge the environment variables of a paste."""

from __future__ import annotations

import difflib
from dataclasses import replace
from typing import Final

from hisparse.flags import answers, typography
from hisparse.flags.answers import Answer
from hisparse.flags.arguments import is_later, variable_history, variables_of
from hisparse.flags.launch import Variable
from hisparse.flags.values import Context
from hisparse.flags.verdict import Item, Kind, Severity, shown_value
from hisparse.reserved import RESERVED_ENV
from hisparse.units import shortened

_SOURCE: Final = "envs.py"
_PREFIX: Final = "VLLM_"
_STRICT: Final = "--fail-on-environ-validation"
_NEAR: Final = 0.8
# what is near a longer text is not looked for
_LONGEST_NAME: Final = 80


def judge_variable(variable: Variable, context: Context, *, suggest: bool = True) -> Item:
    """What a variable is in the release of the command, and whether the engine gets it.

    `suggest` looks for the name that may have been meant, which takes milliseconds.
    """
    item = _judged(variable, context, suggest=suggest)
    fault = typography.fault(variable.value.text)
    if item.severity is not Severity.FINE or not fault or variable.value.opaque:
        return item
    instead = f"{variable.name}={shown_value(variable.name, typography.plain(variable.value.text))}"
    return replace(item, kind=Kind.BAD_VALUE, severity=Severity.WARNING, says=fault, instead=instead, source="")


def _judged(variable: Variable, context: Context, *, suggest: bool) -> Item:
    name, value = variable.name, variable.value.text
    shown = shown_value(name, value)
    item = Item(name, shown, Kind.REAL, Severity.FINE, source=_SOURCE, operator=RESERVED_ENV.get(name, ""))
    ours = name in variables_of(context.release)
    if not variable.reaches and ours:
        says = "set where the engine does not get it: export it in the same shell, or hand it to the container with -e"
        instead = f"export {name}={shortened(shown)}"
        return replace(item, kind=Kind.NO_EFFECT, severity=Severity.WARNING, says=says, instead=instead)
    if (foreign := answers.OTHER_VARIABLES.get((name, value)) or answers.OTHER_VARIABLES.get((name, ""))) is not None:
        severity = Severity.WARNING if foreign.kind is Kind.NO_EFFECT else Severity.FINE
        return replace(item, kind=foreign.kind, severity=severity, says=foreign.says, source=foreign.source)
    if ours:
        off = value.lower() in ("0", "false")
        if name == "VLLM_USE_V2_MODEL_RUNNER" and off and context.hisparse:
            says, instead, source = "HiSparse requires Model Runner V2", "leave it out, or 1", "config/vllm.py"
            refused = replace(item, kind=Kind.CONFLICT, severity=Severity.REFUSED)
            return replace(refused, says=says, instead=instead, source=source)
        return item
    if not name.startswith(_PREFIX):
        says = "not vLLM's own; a library or the system may read it"
        return replace(item, kind=Kind.OTHER_PROGRAM, says=says, source="")
    return _lost_variable(item, context, suggest=suggest, reaches=variable.reaches)


def _lost_variable(item: Item, context: Context, *, suggest: bool, reaches: bool) -> Item:
    """One of vLLM's, by its name, that the release does not read; exporting it would help nobody."""
    strict = reaches and _STRICT in context.values and _STRICT not in context.off
    severity = Severity.REFUSED if strict else Severity.WARNING
    what = "vLLM refuses to start with it" if strict else "vLLM warns and goes on without it"
    lost = replace(item, severity=severity, source="platforms/interface.py")
    span = variable_history(item.name)
    if span is not None and is_later(span, context.release):
        return replace(lost, kind=Kind.NOT_YET, says=f"is a variable {span} only; {what}", instead="a newer release")
    if span is not None:
        known = answers.REMOVED_VARIABLES.get(item.name) or Answer("")
        why = f"; {known.says}" if known.says else ""
        kind = Kind.RENAMED if known.renamed else Kind.REMOVED
        return replace(
            lost, kind=kind, says=f"vLLM had it {span}{why}; {what}", instead=known.instead or answers.LEAVE_OUT
        )
    for begin, answer in answers.NEVER_VARIABLES.items():
        if item.name.startswith(begin):
            says = f"{answer.says}; {what}"
            return replace(lost, kind=Kind.NEVER_EXISTED, says=says, instead=answer.instead)
    known_names = sorted(variables_of(context.release))
    name = item.name[:_LONGEST_NAME]
    near = difflib.get_close_matches(name, known_names, n=1, cutoff=_NEAR) if suggest else []
    instead = f"{near[0]}, if that was meant" if near else answers.LEAVE_OUT
    says = f"is not a variable of vLLM {context.release}; {what}"
    return replace(lost, kind=Kind.UNKNOWN, says=says, instead=instead)
