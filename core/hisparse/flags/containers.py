"""What a Kubernetes manifest, a compose file or a Dockerfile starts vLLM with.

Of YAML only the values are read here: whoever has the text parses it, and a text is told apart with manifest_text.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final

from hisparse.errors import SpecError
from hisparse.flags.launch import Launch, Paste, Variable, launch_of, runs_vllm
from hisparse.flags.shell import FIELD, Command, Word, assignment, commands
from hisparse.units import shortened

_KEYS: Final = "apiVersion|args|command|containers|entrypoint|image|kind|services|spec|template"
_MANIFEST: Final = re.compile(rf"^[ ]*(?:-[ ]+)?(?:{_KEYS})[ ]*:(?=\s|$)", re.MULTILINE)
# the list alone, in block or flow style
_ITEMS: Final = re.compile(r"[ ]*\[\s*(?:\"[^\"]*\"|'[^']*')\s*,|[ ]*-[ ]+(?:[\"']?--?[A-Za-z]|[\"']?(?:\S*/)?vllm\b)")
_HERE: Final = re.compile(r"<<-?[ ]*['\"]?(\w+)['\"]?[^\n]*\n")
_MOST_HERE: Final = 20
_INSTRUCTION: Final = re.compile(r"[ \t]*([A-Za-z]+)[ \t]+(.*)", re.DOTALL)
_DOCKERFILE: Final = re.compile(r"(?:FROM[ \t]+\S|(?:CMD|ENTRYPOINT)[ \t]+\[)")
# Kubernetes fills in $(NAME), compose ${NAME} and $NAME; two dollars stand for one
_FILLED_IN: Final = re.compile(r"(?<!\$)(?:\$\$)*\$[({A-Za-z_]")
_WORDS: Final = ("args", "command", "entrypoint")
_DEEPEST: Final = 40
_SHELL: Final = (Word("/bin/sh"), Word("-c"))


@dataclass(frozen=True)
class Container:
    """One container: `command` is what takes the place of the image's entrypoint, None where nothing does."""

    name: str
    image: str = ""
    command: tuple[Word, ...] | None = None
    arguments: tuple[Word, ...] = ()
    variables: tuple[Variable, ...] = ()


# --- YAML ---------------------------------------------------------------------------------------------------------


def manifest_text(text: str) -> str | None:
    """The YAML of a paste, also where a shell reads it from a here-document; None where it looks like none."""
    for here in islice(_HERE.finditer(text), _MOST_HERE):
        end = re.compile(rf"^[ \t]*{here.group(1)}[ ]*$", re.MULTILINE).search(text, here.end())
        body = text[here.end() : end.start() if end is not None else len(text)]
        if _MANIFEST.search(body):
            return body
    first = next((line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")), "")
    begins = first.strip() == "---" or _ITEMS.match(first) or re.match(r"[ ]*(?:-[ ]+)?[\w.-]+[ ]*:(?:\s|$)", first)
    return text if begins and (_ITEMS.match(first) or _MANIFEST.search(text)) else None


def containers_in(documents: Sequence[Any]) -> tuple[Container, ...]:
    """The containers of parsed manifests or compose files, or of a piece of one.

    Raises SpecError where a word is no text, as a port without quotes is, or where there is no container.
    """
    found: list[Container] = []
    for document in documents:
        if isinstance(document, Mapping) and isinstance(services := document.get("services"), Mapping):
            found += [_service(str(name), one) for name, one in services.items() if isinstance(one, Mapping)]
        else:
            found += _pods(document, set(), 0)
    if not found:
        raise SpecError(FIELD, "is YAML without containers; paste what holds their command and args, or a command")
    return tuple(found)


def _pods(value: Any, seen: set[int], depth: int) -> Iterator[Container]:  # noqa: ANN401  YAML
    """Every container below a value; what aliases repeat is looked at once."""
    if not isinstance(value, Mapping | list) or id(value) in seen or depth > _DEEPEST:
        return
    seen.add(id(value))
    if isinstance(value, list):
        if depth == 0 and value and not any(isinstance(one, Mapping | list) for one in value):
            # the list alone, as it stands below args: or command:
            yield Container("list", arguments=_texts(value, "list"))
        for one in value:
            yield from _pods(one, seen, depth + 1)
    elif isinstance(value.get("image"), str) or any(_is_words(value.get(key)) for key in _WORDS):
        yield _container(value)
    else:
        for one in value.values():
            yield from _pods(one, seen, depth + 1)


def _is_words(value: Any) -> bool:  # noqa: ANN401  YAML
    return isinstance(value, str) or (isinstance(value, list) and not any(isinstance(one, Mapping) for one in value))


def _container(value: Mapping[str, Any]) -> Container:
    """As Kubernetes has them; a piece of a compose file has its command as a text, or an entrypoint."""
    if isinstance(value.get("command"), str) or "entrypoint" in value or "environment" in value:
        return _service(_plain(value.get("name") or "service"), value)
    name = _plain(value.get("name") or "container")
    command = _texts(value["command"], f"{name}.command") if value.get("command") else None
    pairs = value.get("env")
    variables = [
        Variable(
            _plain(one["name"]), _word(one["value"]) if isinstance(one.get("value"), str) else Word("", opaque=True)
        )
        for one in (pairs if isinstance(pairs, list) else ())
        if isinstance(one, Mapping) and "name" in one
    ]
    return Container(name, _image(value), command, _texts(value.get("args") or [], f"{name}.args"), tuple(variables))


def _service(name: str, value: Mapping[str, Any]) -> Container:
    entrypoint, command = value.get("entrypoint"), value.get("command")
    words = _compose_words(command, f"{name}.command")
    return Container(
        name,
        _image(value),
        _compose_words(entrypoint, f"{name}.entrypoint") if entrypoint else None,
        words,
        tuple(_environment(value.get("environment"))),
    )


def _compose_words(value: Any, place: str) -> tuple[Word, ...]:  # noqa: ANN401  YAML
    if isinstance(value, str):
        # compose splits a text into words and runs no shell
        return tuple(word for one in commands(value.replace("\n", " ")) for word in (*_pairs(one), *one.words))
    return _texts(value or [], place)


def _pairs(command: Command) -> tuple[Word, ...]:
    return tuple(replace(word, text=f"{name}={word.text}") for name, word in command.assignments)


def _environment(value: Any) -> Iterator[Variable]:  # noqa: ANN401  YAML
    if isinstance(value, Mapping):
        for name, one in value.items():
            yield Variable(str(name), Word("", opaque=True) if one is None else _word(_plain(one)))
    elif isinstance(value, list):
        for one in value:
            name, equals, text = _plain(one).partition("=")
            yield Variable(name, _word(text) if equals else Word("", opaque=True))


def _plain(value: Any) -> str:  # noqa: ANN401  YAML
    if isinstance(value, Mapping | list):
        # written out, what aliases repeat can be as large as they like
        return "a list or map"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _image(value: Mapping[str, Any]) -> str:
    image = value.get("image")
    return image if isinstance(image, str) else ""


def _texts(value: Any, place: str) -> tuple[Word, ...]:  # noqa: ANN401  YAML
    if not isinstance(value, list):
        raise SpecError(FIELD, f'{place} is no list; write one, as in ["--max-model-len", "131072"]')
    for number, one in enumerate(value):
        if not isinstance(one, str):
            said = shortened(_plain(one)) if one is not None else ""
            quotes = "" if isinstance(one, Mapping | list) else f'; put it in quotes: "{said}"'
            raise SpecError(FIELD, f"{place}[{number}] is {said or 'empty'}, and only text is taken there{quotes}")
    return tuple(_word(one) for one in value)


def _word(text: str) -> Word:
    return Word(text, opaque=_FILLED_IN.search(text) is not None, quoted=True)


# --- Dockerfile ---------------------------------------------------------------------------------------------------


def is_dockerfile(text: str) -> bool:
    """Whether a text begins as one, or as its CMD or ENTRYPOINT."""
    first = next((line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")), "")
    return _DOCKERFILE.match(first) is not None or (
        first.upper().startswith("ARG ") and re.search(r"^FROM[ \t]+\S", text, re.MULTILINE) is not None
    )


def paste_of_dockerfile(text: str) -> Paste:
    """What the last stage of a Dockerfile runs. Raises SpecError where an instruction cannot be read."""
    container = Container("Dockerfile")
    others: list[Command] = []
    for name, rest in _instructions(text):
        if name == "FROM":
            words = [word for word in rest.split() if not word.startswith("--")]
            container = Container("Dockerfile", words[0] if words else "")
        elif name == "ENV":
            container = replace(container, variables=(*container.variables, *_env(rest)))
        elif name == "ENTRYPOINT":
            # a new entrypoint takes the image's own CMD away; a later one of the file stays
            container = replace(container, command=_exec_or_shell(name, rest))
        elif name == "CMD":
            container = replace(container, arguments=_exec_or_shell(name, rest))
        elif name == "RUN" and not rest.startswith("["):
            # what builds the image is looked through for what circulates, and need not be whole
            with contextlib.suppress(SpecError):
                others += commands(re.sub(r"^(?:--\S+\s+)*", "", rest))
    if container.command is not None and container.command[:2] == _SHELL:
        # the shell form of ENTRYPOINT drops CMD
        container = replace(container, arguments=())
    found = paste_of_containers((container,))
    return replace(found, others=(*found.others, *others))


def _instructions(text: str) -> Iterator[tuple[str, str]]:
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    for line in re.sub(r"\\[ \t]*\n", " ", "\n".join(lines)).splitlines():
        match = _INSTRUCTION.fullmatch(line)
        if match is not None:
            yield match.group(1).upper(), match.group(2).strip()


def _exec_or_shell(name: str, rest: str) -> tuple[Word, ...]:
    if not rest.startswith("["):
        return (*_SHELL, Word(rest, quoted=True))
    try:
        words = json.loads(rest)
    except (ValueError, RecursionError):
        words = None
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise SpecError(
            FIELD, f'{name} is no JSON list of texts, so Docker gives it to a shell; write {name} ["vllm", "serve"]'
        )
    # nothing fills in an exec form
    return tuple(Word(word, quoted=True) for word in words)


def _env(rest: str) -> Iterator[Variable]:
    found = [pair for one in commands(rest) for pair in (*one.assignments, *map(assignment, one.words))]
    if any(found):
        yield from (Variable(*pair) for pair in found if pair is not None)
    else:
        # the old form: ENV NAME VALUE
        name, _, value = rest.partition(" ")
        yield Variable(name, Word(value.strip()))


# --- launches -----------------------------------------------------------------------------------------------------


def paste_of_containers(containers: Sequence[Container]) -> Paste:
    """Their launches, and the variables that these get."""
    launches: list[Launch] = []
    variables: dict[str, Variable] = {}
    others: list[Command] = []
    for one in containers:
        found = _started(one)
        if found is None:
            words = (*(one.command or ()), *one.arguments) or (Word(one.image or one.name),)
            others.append(Command(words))
            continue
        launch, more = found
        reaching = (*one.variables, *more)
        launches.append(replace(launch, variables=reaching, contained=True))
        variables |= {variable.name: variable for variable in reaching}
    return Paste(tuple(launches), tuple(variables.values()), tuple(others))


def _started(one: Container) -> tuple[Launch, Sequence[Variable]] | None:
    words = (*(one.command or ()), *one.arguments)
    if one.command is None and (runs_vllm(one.image) or words[:1] == ()):
        return launch_of(one.image, words) if runs_vllm(one.image) else None
    return launch_of(one.image, words, own_entrypoint=False)
