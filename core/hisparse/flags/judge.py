"""Judge a paste: every flag, variable and program of it, for one release of vLLM."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from hisparse.errors import SpecError
from hisparse.flags import answers, typography, values
from hisparse.flags.answers import Answer
from hisparse.flags.arguments import (
    Flag,
    Span,
    Takes,
    Type,
    flag_history,
    flags_of,
    is_later,
    pinned_release,
    program_history,
    release_of,
)
from hisparse.flags.containers import containers_in, is_dockerfile, paste_of_containers, paste_of_dockerfile
from hisparse.flags.given import Given, completions, read_arguments
from hisparse.flags.known import RELEASES
from hisparse.flags.launch import OPENAI_MODULE, Launch, Paste, Started, paste_of
from hisparse.flags.shell import FIELD, Command, Word
from hisparse.flags.typography import DASHES
from hisparse.flags.values import Context, Ruling
from hisparse.flags.variables import judge_variable
from hisparse.flags.verdict import Item, Kind, Report, Severity, shown_value
from hisparse.reserved import RESERVED_FLAGS
from hisparse.units import shortened

PARSER: Final = "engine/arg_utils.py"
# keys may follow these as well, although a value that is no JSON is a text
_JSON_OR_TEXT: Final = frozenset({"--hf-overrides"})
_REPEATED: Final = frozenset({"--middleware"})
_NEAR: Final = 0.8
# what is near a longer text is not looked for
_LONGEST_NAME: Final = 80
# looking for what was meant takes milliseconds
_MOST_SUGGESTIONS: Final = 100
_MOST_NAMED: Final = 6
MOST_ITEMS: Final = 1000
"""More than three times the flags that a release has; nobody reads more answers."""


def judge(text: str, release: str | None = None) -> Report:
    """Judge a pasted command. `release` is one of RELEASES; None takes that of its image, else the pinned one.

    Raises SpecError where the text is no shell, holds nothing to judge or more than MOST_ITEMS flags and variables.
    """
    return judge_paste(paste_of_dockerfile(text) if is_dockerfile(text) else paste_of(text), release)


def judge_manifest(documents: Sequence[Any], release: str | None = None) -> Report:
    """The same of the parsed YAML of Kubernetes or compose. Raises SpecError where no container starts vLLM."""
    containers = containers_in(documents)
    paste = paste_of_containers(containers)
    if not paste.launches:
        named = ", ".join(dict.fromkeys(one.image or one.name for one in containers))
        raise SpecError(
            FIELD,
            f"holds no container that starts vLLM ({shortened(named)}): none has vllm in its image's name or as its "
            "command; paste the arguments alone, as in --max-model-len 131072",
        )
    return judge_paste(paste, release)


def judge_words(words: Sequence[str], release: str | None = None) -> Report:
    """The same of words that a shell has already split."""
    return judge_paste(_paste_of_words(words), release)


def judge_paste(paste: Paste, release: str | None) -> Report:
    """Judge what was read from a paste."""
    # before the work, and of a flag and its value one item comes
    _refuse_many(sum(len(launch.arguments) for launch in paste.launches) // 2)
    _refuse_many(len(paste.variables))
    chosen, why = _release(release, paste.launches)
    items: list[Item] = []
    contexts: list[Context] = []
    for launch in paste.launches:
        if launch.started is Started.NO_SUBCOMMAND and (not launch.arguments or launch.arguments[0].text in _LONE):
            continue
        given, positionals = read_arguments(launch.arguments, chosen)
        context = _context(launch, given, positionals, chosen)
        contexts.append(context)
        items += _program(launch, chosen)
        if launch.started is not Started.OTHER_SUBCOMMAND:
            items += _positionals(launch, given, positionals)
            items += _flags(given, context)
    context = contexts[0] if contexts else Context(chosen)
    items += [
        judge_variable(variable, context, suggest=place < _MOST_SUGGESTIONS)
        for place, variable in enumerate(paste.variables)
    ]
    for command in paste.others:
        items += _stray(command)
    if not items and not paste.launches:
        said = shortened(" ".join(word.text for word in paste.others[0].words))
        raise SpecError(
            FIELD, f'"{said}" starts no vLLM; paste a command such as vllm serve MODEL, or flags and variables'
        )
    _refuse_many(len(items))
    judged = any(launch.started is not Started.OTHER_SUBCOMMAND for launch in paste.launches)
    judged = judged or any(item.kind is not Kind.NOT_JUDGED for item in items)
    return Report(chosen, why, tuple(items), tuple(command.words[0].text for command in paste.others), judged=judged)


def _paste_of_words(words: Sequence[str]) -> Paste:
    quoted = " ".join(f"'{word.replace(chr(39), chr(39) + chr(92) + chr(39) + chr(39))}'" for word in words)
    return paste_of(quoted)


def _refuse_many(count: int) -> None:
    if count > MOST_ITEMS:
        raise SpecError(FIELD, f"holds more than {MOST_ITEMS:,} flags or variables; paste one command alone")


def _release(asked: str | None, launches: Sequence[Launch]) -> tuple[str, str]:
    if asked is not None:
        return asked, "asked for"
    tagged = next((launch.release for launch in launches if launch.release is not None), None)
    if tagged is None:
        image = next((launch.image for launch in launches if launch.image), None)
        if image is None:
            return pinned_release(), "the release that hisparse runs"
        says = f"{_tag_words(image)}, so this is the release that hisparse runs; --engine-version sets another"
        return pinned_release(), says
    known = release_of(tagged)
    if known is not None:
        return known, "the tag of the image"
    return (
        pinned_release(),
        f"the image is of {tagged}, whose flags have not been read; this is the one that hisparse runs",
    )


def _tag_words(image: str) -> str:
    """Why an image names no release: "x/vllm:latest"."""
    tag = image.partition("@")[0].rpartition("/")[2].partition(":")[2]
    if "@" in image and not tag:
        return "the digest of the image names no release"
    return (
        f"the image's tag {shortened(tag)} names no release" if tag else "the image has no tag, which stands for latest"
    )


# --- reading ------------------------------------------------------------------------------------------------------


def _context(launch: Launch, given: Sequence[Given], positionals: Sequence[Word], release: str) -> Context:
    found: dict[str, Word | None] = {}
    off: set[str] = set()
    documents: dict[str, Any] = {}
    for one in given:
        if one.flag is None:
            continue
        long = one.flag.long
        off.discard(long)
        if one.flag.negative:
            off.add(long)
        if one.dotted:
            _merge(documents, long, one)
            continue
        found[long] = one.value
        if _is_json(one.flag) and one.value is not None:
            try:
                documents[long] = values.document_of(one.value)
            except ValueError:
                documents.pop(long, None)
    model = found.get("--model") or (positionals[0] if positionals else None)
    variables = {variable.name: variable.value for variable in launch.variables}
    return Context(release, model.text if model is not None else "", found, frozenset(off), variables, documents)


def _merge(documents: dict[str, Any], long: str, one: Given) -> None:
    place = documents.setdefault(long, {})
    *path, last = one.dotted.split(".")
    for key in path:
        if not isinstance(place, dict):
            return
        place = place.setdefault(key, {})
    if isinstance(place, dict) and one.value is not None:
        try:
            place[last] = values.document_of(one.value)
        except ValueError:
            place[last] = one.value.text


def _is_json(flag: Flag) -> bool:
    """Whether a value is JSON and keys may follow the name."""
    return flag.type in (Type.JSON, Type.OBJECT) or flag.long in _JSON_OR_TEXT


# --- programs -----------------------------------------------------------------------------------------------------


def _program(launch: Launch, release: str) -> Iterator[Item]:
    for fault in launch.faults:
        yield Item("shell", "", Kind.BAD_VALUE, Severity.REFUSED, fault, "a backslash as the last letter of the line")
    if launch.started is Started.NO_SUBCOMMAND:
        yield Item(
            launch.subject,
            "",
            Kind.BAD_VALUE,
            Severity.REFUSED,
            "takes a subcommand first, and no flags of the engine",
            "vllm serve MODEL",
            "entrypoints/cli/main.py",
        )
    elif launch.started is Started.OTHER_SUBCOMMAND:
        yield Item(
            launch.subject, "", Kind.NOT_JUDGED, Severity.FINE, "only the flags of vllm serve are judged here", "", ""
        )
    elif launch.started is Started.MODULE:
        yield _module(launch, release)


_LONE: Final = frozenset({"-h", "--help", "-v", "--version"})


def _module(launch: Launch, release: str) -> Item:
    span = program_history(launch.what)
    serve = "vllm serve MODEL"
    source = f"{launch.what.replace('.', '/').removeprefix('vllm/')}.py"
    if span is None:
        near = f"; {OPENAI_MODULE} is one" if launch.what.startswith("vllm.entrypoints") else ""
        says = f"no release read here has a program of this name{near}"
        return Item(launch.subject, "", Kind.NEVER_EXISTED, Severity.REFUSED, says, serve)
    if release not in span:
        kind = Kind.NOT_YET if is_later(span, release) else Kind.REMOVED
        return Item(launch.subject, "", kind, Severity.REFUSED, f"vLLM had it {span}", serve, source)
    if launch.what == OPENAI_MODULE and RELEASES.index(release) >= RELEASES.index(answers.DEPRECATED_SINCE):
        return Item(launch.subject, "", Kind.DEPRECATED, Severity.WARNING, "works, with a warning", serve, source)
    return Item(launch.subject, "", Kind.REAL, Severity.FINE, source=source)


_MANY_WORDS: Final = re.compile(r"\$[@*]|\$\{[@*]|\$\{\w+\[[@*]\]")
"""What may stand for more than the one word that is the model."""

_MOVES_MODEL: Final = (Started.SERVE, Started.IMAGE)
"""`vllm serve` makes the value of --model its first word, so that there is no room for another."""


def _positionals(launch: Launch, given: Sequence[Given], positionals: Sequence[Word]) -> Iterator[Item]:
    if launch.started is Started.FLAGS_ONLY:
        extra = positionals
    else:
        has_model = any(one.flag is not None and one.flag.long == "--model" for one in given)
        extra = positionals if has_model and launch.started in _MOVES_MODEL else positionals[1:]
    for word in positionals:
        name, blank, value = word.text.partition(" ")
        if blank and re.fullmatch(r"--?[A-Za-z][\w.-]*", name):
            says = "is one word with a blank in it, which the parser takes for no flag; name and value are two words"
            instead = f"{name}={shown_value(name, value.strip())}"
            yield Item(name, shown_value(name, value), Kind.BAD_VALUE, Severity.REFUSED, says, instead, PARSER)
    if extra is not positionals and positionals and (says := typography.fault(positionals[0].text)):
        model = positionals[0]
        yield Item(
            model.text, "", Kind.BAD_VALUE, Severity.REFUSED, says, typography.plain(model.text), "config/model.py"
        )
    for word in positionals:
        if word.opaque and (word in extra or _MANY_WORDS.match(word.text)):
            says = "is filled in by the shell, so it is not known what it holds"
            yield Item(word.text, "", Kind.NOT_JUDGED, Severity.FINE, says)
    for word in extra:
        if word.opaque or re.match(r"--?[A-Za-z][\w.-]* ", word.text):
            continue
        text = shortened(word.text.strip())
        yield Item(
            text or "(blank)",
            "",
            Kind.UNKNOWN,
            Severity.REFUSED,
            "belongs to no flag; vLLM takes one word, the model, and a switch takes no value",
            "leave it out, or quote it together with the flag's value",
            PARSER,
        )


# --- flags --------------------------------------------------------------------------------------------------------


def _flags(given: Sequence[Given], context: Context) -> Iterator[Item]:
    # the parser keeps the last of several values, and merges dotted keys
    last = {(one.flag.long, bool(one.dotted)): place for place, one in enumerate(given) if one.flag is not None}
    rulings = _rulings(given, context)
    unknown = 0
    for place, one in enumerate(given):
        if one.flag is None:
            unknown += 1
            yield _unknown(one, context, suggest=unknown <= _MOST_SUGGESTIONS)
            continue
        long = one.flag.long
        final = last[long, bool(one.dotted)] == place
        if not one.dotted and not final and long not in _REPEATED:
            says = f"{long} is written again further on, and the last one counts"
            yield _item(one, Kind.NO_EFFECT, Severity.WARNING, says, "one of them", "utils/argparse_utils.py")
        else:
            yield _real(one, one.flag, context, rulings.get(place))


def _rulings(given: Sequence[Given], context: Context) -> dict[int, Ruling]:
    """What is said of each flag's last value and its keys together, by the place of the one that is to blame."""
    whole: dict[str, int] = {}
    keys: dict[str, list[int]] = {}
    for place, one in enumerate(given):
        if one.flag is not None and one.dotted:
            keys.setdefault(one.flag.long, []).append(place)
        elif one.flag is not None:
            whole[one.flag.long] = place
    found = {}
    for long in {*whole, *keys}:
        dotted = keys.get(long, [])
        places = [whole[long], *dotted] if long in whole else dotted
        first = given[places[0]]
        if first.flag is None or any(word.opaque for place in places for word in given[place].written):
            continue
        ruling = values.ruling(first.flag, first.written if long in whole else (), context)
        if ruling is not None:
            blamed = [place for place in dotted if _is_about(given[place].dotted, ruling.key)]
            found[blamed[-1] if blamed else places[0 if long in whole else -1]] = ruling
    return found


def _is_about(dotted: str, key: str) -> bool:
    """Whether one of two keys is the other, or holds it."""
    return bool(key) and f"{dotted}.".startswith(f"{key}.") | f"{key}.".startswith(f"{dotted}.")


def _item(one: Given, kind: Kind, severity: Severity, says: str = "", instead: str = "", source: str = PARSER) -> Item:
    name = one.word.text.partition("=")[0] if one.attached and one.word.text.startswith("--") else one.word.text
    written = shown_value(one.flag.long if one.flag is not None else one.name, one.shown)
    if one.attached and not one.word.text.startswith("--"):
        name = one.name
    return Item(name, written, kind, severity, says, instead, source, _operator(one))


def _operator(one: Given) -> str:
    """What the operator has for a flag of the release that it runs."""
    known = flags_of(pinned_release())
    if one.name in known and one.name in RESERVED_FLAGS:
        return RESERVED_FLAGS[one.name]
    if one.flag is None or one.flag.long not in known:
        return ""
    message = RESERVED_FLAGS.get(one.flag.long, "")
    # what is said against a switch is not said against its opposite
    return message if not one.flag.negative or message.startswith("is set by the operator") else ""


def _real(one: Given, flag: Flag, context: Context, judged: Ruling | None) -> Item:
    if (form := _form(one, flag) or _typography(one, flag)) is not None:
        return form
    value = one.value
    if judged is not None and judged.severity is not Severity.FINE:
        return _item(one, judged.kind, judged.severity, judged.says, judged.instead, judged.source or PARSER)
    if not one.dotted and value is not None and (bad := _value(one, flag, value)) is not None:
        return bad
    if one.completed:
        return _completed(one, flag, context.release)
    deprecated = answers.DEPRECATED_FLAGS.get(flag.long)
    if deprecated is not None and RELEASES.index(context.release) >= RELEASES.index(answers.DEPRECATED_SINCE):
        return _item(one, Kind.DEPRECATED, Severity.WARNING, deprecated.says, deprecated.instead, deprecated.source)
    if judged is not None:
        return _item(one, judged.kind, judged.severity, judged.says, judged.instead, judged.source or PARSER)
    if _restates(one, flag, context):
        source = answers.ON_ANYWAY.get(flag.long, PARSER)
        return _item(one, Kind.DEFAULT, Severity.FINE, "holds without it as well", source=source)
    note = answers.NOTES.get(flag.long)
    if note is not None and not flag.negative:
        return _item(one, Kind.REAL, Severity.FINE, note.says, note.instead, note.source)
    return _item(one, Kind.REAL, Severity.FINE)


def _completed(one: Given, flag: Flag, release: str) -> Item:
    """A name that means nothing itself, and that the parser takes for the beginning of another."""
    source = "utils/argparse_utils.py"
    taken = f"the parser takes it for the beginning of {flag.name}"
    never = _never(one.name)
    if never is not None:
        says = f"{never.says}; {taken}"
        return _item(one, Kind.NEVER_EXISTED, Severity.WARNING, says, never.instead, source)
    span = flag_history(one.name)
    if span is not None:
        lost = _gone(one, span, release)
        return replace(lost, severity=Severity.WARNING, says=f"{lost.says}; {taken}", source=source)
    says = f"{taken}, as long as no other flag begins so"
    return _item(one, Kind.ABBREVIATED, Severity.WARNING, says, flag.name, source)


def _never(name: str) -> Answer | None:
    return answers.CIRCULATING_FLAGS.get(name) or answers.OTHER_ENGINES_FLAGS.get(name)


def _form(one: Given, flag: Flag) -> Item | None:
    """Whether a value is there exactly where one has to be."""
    if one.dotted:
        if not _is_json(flag):
            says = f"takes no keys, so .{shortened(one.dotted)} cannot follow it"
            return _item(one, Kind.BAD_VALUE, Severity.REFUSED, says, flag.name, "utils/argparse_utils.py")
        return None
    if flag.takes in (Takes.ALONE, Takes.SWITCH) and one.attached:
        opposite = f", and its opposite is --no-{flag.long.removeprefix('--')}" if flag.takes is Takes.SWITCH else ""
        says = f"a switch, which takes no value{opposite}"
        return _item(one, Kind.BAD_VALUE, Severity.REFUSED, says, flag.name)
    if flag.takes in (Takes.ONE, Takes.MANY) and one.value is None:
        return _item(one, Kind.BAD_VALUE, Severity.REFUSED, "has no value", f"{flag.name} VALUE")
    return None


_NAMES_FILES: Final = frozenset({"--model", "--tokenizer", "--hf-config-path", "--config", "--download-dir"})
"""Flags whose value is looked for, so that another letter is another thing."""


def _typography(one: Given, flag: Flag) -> Item | None:
    """What a word processor has made of the values."""
    for word in one.written:
        found = typography.fault(word.text, is_json=_is_json(flag) and not one.dotted and _is_no_json(word))
        if found and not word.opaque:
            is_text = flag.type is Type.TEXT and not flag.values and flag.long not in _NAMES_FILES
            severity = Severity.WARNING if is_text else Severity.REFUSED
            meant = shown_value(flag.long, typography.plain(one.shown))
            return _item(one, Kind.BAD_VALUE, severity, found, f"{one.word.text.partition('=')[0]} {meant}", "")
    return None


def _is_no_json(word: Word) -> bool:
    try:
        values.document_of(word)
    except ValueError:
        return True
    return False


def _value(one: Given, flag: Flag, value: Word) -> Item | None:
    if value.opaque:
        return None
    if flag.type in (Type.JSON, Type.OBJECT) and value.text not in ("", "None"):
        try:
            document = values.document_of(value)
        except ValueError:
            if re.search(r'"host_pool_gib"\s*:\s*N\b', value.text):
                says = f"the value is no JSON yet; {answers.POOL_SIZE}"
                return _item(one, Kind.BAD_VALUE, Severity.REFUSED, says, "a number in place of N")
            says = "the value is no JSON; the shell takes double quotes away where no single quotes are around them"
            return _item(one, Kind.BAD_VALUE, Severity.REFUSED, says, f"{flag.name} '{{\"key\": ...}}'")
        if flag.type is Type.OBJECT and not isinstance(document, dict):
            says = "the value is JSON and no object"
            return _item(one, Kind.BAD_VALUE, Severity.REFUSED, says, f"{flag.name} '{{...}}'")
    wrong = [word.text for word in one.written if not word.opaque and word.text not in (*flag.values, "None")]
    if flag.values and wrong:
        near = difflib.get_close_matches(wrong[0][:_LONGEST_NAME], flag.values, n=1)
        offered = near[0] if near else f"one of {', '.join(flag.values)}"
        return _item(
            one,
            Kind.BAD_VALUE,
            Severity.REFUSED,
            f'"{shortened(wrong[0])}" is no value of it',
            f"{flag.name} {offered}",
        )
    return None


def _restates(one: Given, flag: Flag, context: Context) -> bool:
    if one.dotted or one.more:
        return False
    if flag.takes is Takes.SWITCH:
        on = RELEASES.index(context.release) >= RELEASES.index(answers.ON_SINCE)
        default = "True" if on and flag.long in answers.ON_ANYWAY else flag.default
        return bool(default) and default == str(not flag.negative)
    return one.value is not None and not one.value.opaque and values.is_default(flag, one.value.text)


def _unknown(one: Given, context: Context, *, suggest: bool) -> Item:
    release, name = context.release, one.name
    if one.word.text[0] in DASHES or name.startswith(tuple(f"-{dash}" for dash in DASHES)):
        plain = f"--{one.word.text.lstrip('-' + DASHES).partition('=')[0]}"
        says = "begins with a dash that a word processor made; a flag begins with two plain hyphens"
        return _item(one, Kind.UNKNOWN, Severity.REFUSED, says, plain, "")
    span = flag_history(name)
    if span is not None:
        return _gone(one, span, release)
    never = _never(name)
    if never is not None:
        return _item(one, Kind.NEVER_EXISTED, Severity.REFUSED, never.says, never.instead, "")
    flags = flags_of(release)
    whole = completions(name, flags) if len(name) > 1 + name.startswith("--") else []
    if len(whole) > 1:
        said = ", ".join(flag.name for flag in whole[:_MOST_NAMED])
        says = f"could be {said}{' and more' if len(whole) > _MOST_NAMED else ''}; the parser refuses to choose"
        return _item(one, Kind.UNKNOWN, Severity.REFUSED, says, "the whole name", "utils/argparse_utils.py")
    return _item(
        one, Kind.UNKNOWN, Severity.REFUSED, f"is not a flag of vLLM {release}", _meant(name, flags) if suggest else ""
    )


def _meant(name: str, flags: Mapping[str, Flag]) -> str:
    if not name.startswith("--"):
        split = next((known for known in sorted(flags, key=len, reverse=True) if _is_glued(name, known)), None)
        if split is not None:
            return f"{split} {name.removeprefix(split)}"
        return f"-{name}" if f"-{name}" in flags else ""
    near = difflib.get_close_matches(name[:_LONGEST_NAME], list(flags), n=1, cutoff=_NEAR)
    return f"{near[0]}, if that was meant" if near else ""


def _is_glued(name: str, known: str) -> bool:
    """-tp8 for -tp 8."""
    return not known.startswith("--") and name.startswith(known) and name.removeprefix(known).isdigit()


def _gone(one: Given, span: Span, release: str) -> Item:
    if is_later(span, release):
        says = f"is a flag {span} only"
        return _item(one, Kind.NOT_YET, Severity.REFUSED, says, "leave it out, or a newer release")
    bare = f"--{one.name.removeprefix('--no-')}" if one.name.startswith("--no-") else one.name
    known = answers.REMOVED_FLAGS.get(one.name) or answers.REMOVED_FLAGS.get(bare)
    if known is None:
        return _item(one, Kind.REMOVED, Severity.REFUSED, f"vLLM had it {span}", answers.LEAVE_OUT)
    kind = Kind.RENAMED if known.renamed else Kind.REMOVED
    says = f"vLLM had it {span}; {known.says}"
    return _item(one, kind, Severity.REFUSED, says, known.instead or answers.LEAVE_OUT, known.source)


# --- other programs -----------------------------------------------------------------------------------------------


def _stray(command: Command) -> Iterator[Item]:
    """What circulates is answered wherever it stands (pip install ... --enable-hybrid-kv), the rest is not judged."""
    for word in command.words:
        bare = word.text.partition("=")[0].partition(":")[0].lstrip("-").replace("_", "-").lower()
        known = answers.CIRCULATING_FLAGS.get(f"--{bare}") or answers.CIRCULATING_WORDS.get(word.text)
        if known is not None:
            yield Item(word.text, "", Kind.NEVER_EXISTED, Severity.WARNING, known.says, known.instead, known.source)
        elif (other := answers.OTHER_WORDS.get(word.text)) is not None:
            yield Item(word.text, "", Kind.OTHER_PROGRAM, Severity.FINE, other.says, other.instead, other.source)
