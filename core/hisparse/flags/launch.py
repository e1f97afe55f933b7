"""Which of the pasted commands start vLLM, and with which arguments and variables.

Arrays of bash are put in where they are used, as in `flags=( ... )` and `vllm serve MODEL "${flags[@]}"`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from hisparse.errors import SpecError
from hisparse.flags.shell import FIELD, Command, Word, assignment, commands

OPENAI_MODULE = "vllm.entrypoints.openai.api_server"
CLI_MODULE = "vllm.entrypoints.cli.main"

_CONTAINER_TOOLS = frozenset({"docker", "podman", "nerdctl"})
_KUBECTL = frozenset({"kubectl", "oc"})
_SHELLS = frozenset({"bash", "sh", "zsh", "dash", "ash"})
# what may stand before a program and runs it
_RUNNERS = frozenset(
    {"chrt", "command", "conda", "env", "exec", "ionice", "mamba", "micromamba", "mpirun", "nice", "nohup", "nsys"}
    | {
        "numactl",
        "pipenv",
        "poetry",
        "setsid",
        "srun",
        "stdbuf",
        "sudo",
        "systemd-run",
        "taskset",
        "then",
        "do",
        "else",
    }
    | {"time", "timeout", "tini", "torchrun", "uv", "uvx", "!", "{", "$", "%", ">", "if", "while", "until"}
)
_LONE_SHORT = frozenset("ditP")
_LONE_LONG = frozenset(
    {"--detach", "--init", "--interactive", "--no-healthcheck", "--oom-kill-disable", "--privileged"}
    | {"--publish-all", "--quiet", "--read-only", "--replace", "--rm", "--sig-proxy", "--tty"}
)
_IMAGE_RELEASE = re.compile(r":v?(\d+\.\d+)(?:\.\d+)?(?:[.\-_+].*)?$")
_ARRAY_USE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\[[@*]\]\}")
MOST_LAUNCHES = 100
MOST_WORDS = 20_000
"""An array of arrays of arrays grows without end; no command line has so many words."""
# a bash -c within a bash -c is enough
_DEEPEST = 3


class Started(Enum):
    """How a command starts vLLM."""

    SERVE = "vllm serve"
    MODULE = "python -m"
    IMAGE = "image"
    NO_SUBCOMMAND = "vllm without a subcommand"
    OTHER_SUBCOMMAND = "another subcommand"
    FLAGS_ONLY = "flags without a command"


@dataclass(frozen=True)
class Variable:
    """One environment variable; `reaches` the engine unless it was set for the shell alone."""

    name: str
    value: Word
    reaches: bool = True


@dataclass(frozen=True)
class Launch:
    """One command that starts vLLM. `subject` is the program as written, `what` its subcommand, module or image."""

    started: Started
    subject: str
    arguments: tuple[Word, ...]
    what: str = ""
    release: str | None = None
    """"0.33" of the image's tag v0.33.0."""
    image: str = ""
    """The image that it runs in."""
    contained: bool = False
    """It runs in a container, which gets only the variables that are handed to it."""
    variables: tuple[Variable, ...] = ()
    """All that reach it."""
    faults: tuple[str, ...] = ()


@dataclass(frozen=True)
class Paste:
    """What was pasted: launches of vLLM, variables (one of each name), and the commands of other programs."""

    launches: tuple[Launch, ...] = ()
    variables: tuple[Variable, ...] = ()
    others: tuple[Command, ...] = ()


def paste_of(text: str) -> Paste:
    """Read a paste. Raises SpecError where it is no shell, or nothing in it is about vLLM."""
    gatherer = _Gatherer()
    gatherer.read(text, depth=0)
    gatherer.take_arrays_alone()
    launches = tuple(gatherer.launches)
    # without a launch, what is exported is taken to be for one
    variables = tuple(
        replace(one, reaches=one.name in gatherer.reached if launches else one.reaches)
        for one in gatherer.variables.values()
    )
    if not launches and not variables and not gatherer.others:
        raise SpecError(FIELD, "is empty; paste a vLLM command, as in 'vllm serve MODEL --max-model-len 131072'")
    return Paste(launches, variables, tuple(gatherer.others))


@dataclass
class _Gatherer:
    launches: list[Launch] = field(default_factory=list)
    variables: dict[str, Variable] = field(default_factory=dict)
    """By name: the last that reaches an engine, else the last."""
    others: list[Command] = field(default_factory=list)
    reached: set[str] = field(default_factory=set)
    """Names that some launch gets."""
    arrays: dict[str, tuple[Word, ...]] = field(default_factory=dict)

    def read(self, text: str, depth: int) -> None:
        for command in commands(text):
            self._take(command, depth)

    def take_arrays_alone(self) -> None:
        """Where nothing starts vLLM, arrays that hold flags are what was meant."""
        if self.launches:
            return
        found = (_launch(words) for words in self.arrays.values() if words and words[0].text.startswith("-"))
        self.launches = [one[0] for one in found if one is not None][:MOST_LAUNCHES]

    def _put_in(self, words: Iterable[Word]) -> tuple[Word, ...]:
        """The words with the arrays among them; those that are not known stay as they are."""
        found: list[Word] = []
        for word in words:
            match = _ARRAY_USE.fullmatch(word.text) if word.opaque else None
            elements = self.arrays.get(match.group(1)) if match is not None else None
            if elements is None or (word.quoted and "*" in word.text):
                found.append(word)
            elif word.quoted:
                found += elements
            else:
                # without quotes around it, the shell splits what it puts in at blanks
                found += [replace(one, text=part) for one in elements for part in one.text.split()]
            if len(found) > MOST_WORDS:
                raise SpecError(FIELD, f"has arrays of more than {MOST_WORDS:,} words; paste one command alone")
        return tuple(found)

    def _set_array(self, word: Word) -> None:
        name = word.text.rstrip("+=")
        before = self.arrays.get(name, ()) if word.text.endswith("+=") else ()
        self.arrays[name] = self._put_in((*before, *(word.elements or ())))

    def _take(self, command: Command, depth: int) -> None:
        for array in command.arrays:
            self._set_array(array)
        command = replace(command, words=self._put_in(command.words))
        if not command.words:
            self._set([Variable(name, value, reaches=False) for name, value in command.assignments])
            return
        if (keyword := command.words[0].text) in ("export", "declare", "typeset", "local", "readonly"):
            self._export(command.words[1:], reaches=keyword not in ("local", "readonly"))
            return
        own = [Variable(name, value) for name, value in command.assignments]
        if (inner := _inner_script(command.words)) is not None and depth < _DEEPEST:
            self._set(own)
            self.read(inner, depth + 1)
            return
        found = _launch(command.words)
        if found is None:
            self.others.append(command)
            return
        if len(self.launches) == MOST_LAUNCHES:
            raise SpecError(FIELD, f"starts vLLM more than {MOST_LAUNCHES} times; paste fewer commands at once")
        launch, more = found
        self._set(own)
        shell = () if launch.contained else tuple(one for one in self.variables.values() if one.reaches)
        reaching = (*shell, *more)
        self._set(more)
        self.reached |= {one.name for one in reaching}
        # flags alone are no command that a line could be missing from
        faults = () if launch.started is Started.FLAGS_ONLY else command.faults
        self.launches.append(replace(launch, variables=reaching, faults=faults))

    def _set(self, variables: Iterable[Variable]) -> None:
        for one in variables:
            known = self.variables.get(one.name)
            if one.reaches or known is None or not known.reaches:
                self.variables[one.name] = one

    def _export(self, words: Sequence[Word], *, reaches: bool) -> None:
        for word in words:
            if word.elements is not None:
                self._set_array(word)
            elif (pair := assignment(word)) is not None:
                self._set([Variable(*pair, reaches=reaches)])
            elif reaches and (known := self.variables.get(word.text)) is not None:
                self.variables[word.text] = replace(known, reaches=True)


def _base(word: Word) -> str:
    return word.text.rpartition("/")[2]


def _inner_script(words: Sequence[Word]) -> str | None:
    """The text of `bash -c TEXT`."""
    for place, word in enumerate(words[:-2]):
        if _base(word) in _SHELLS and re.fullmatch(r"-[a-z]*c", words[place + 1].text):
            return words[place + 2].text
        if _base(word) not in _RUNNERS:
            return None
    return None


def _launch(words: tuple[Word, ...]) -> tuple[Launch, list[Variable]] | None:
    """The launch in one command's words, with the variables among them; None for another program."""
    if words[0].text.startswith(("-", "\u2013", "\u2014")):
        return Launch(Started.FLAGS_ONLY, "", words), []
    variables: list[Variable] = []
    for place, word in enumerate(words):
        name = _base(word)
        if name in _CONTAINER_TOOLS and _is_run_by(words[:place]):
            found = _container(words[place:])
            return (replace(found[0], contained=True), found[1]) if found else None
        if name in _KUBECTL and _is_run_by(words[:place]):
            found = _kubectl(words[place:])
            return (replace(found[0], contained=True), found[1]) if found else None
        if name == "vllm" and _is_run_by(words[:place]):
            return _vllm(words[place:]), variables
        if name.startswith("python") and _is_run_by(words[:place]) and (module := _python(words[place:])) is not None:
            return module, variables
        if (pair := assignment(word)) is not None:
            variables.append(Variable(*pair))
    return None


def _is_run_by(before: Sequence[Word]) -> bool:
    return not before or _base(before[0]) in _RUNNERS or assignment(before[0]) is not None


def _vllm(words: Sequence[Word]) -> Launch:
    rest = tuple(words[1:])
    if not rest or rest[0].text.startswith("-"):
        return Launch(Started.NO_SUBCOMMAND, words[0].text, rest)
    subcommand = rest[0].text
    started = Started.SERVE if subcommand == "serve" else Started.OTHER_SUBCOMMAND
    return Launch(started, f"{words[0].text} {subcommand}", rest[1:], subcommand)


def _python(words: Sequence[Word]) -> Launch | None:
    """`python -m vllm...`, or a path that ends like one of its modules."""
    for place, word in enumerate(words[1:], start=1):
        if word.text == "-m":
            module = words[place + 1].text if place + 1 < len(words) else ""
            return _module(words[: place + 2], module, tuple(words[place + 2 :])) if _is_vllm(module) else None
        if not word.text.startswith("-"):
            module = word.text.removesuffix(".py").replace("/", ".").lstrip(".")
            begin = module.find("vllm.entrypoints")
            return _module(words[: place + 1], module[begin:], tuple(words[place + 1 :])) if begin >= 0 else None
    return None


def _is_vllm(module: str) -> bool:
    return module == "vllm" or module.startswith("vllm.")


def _module(words: Sequence[Word], module: str, rest: tuple[Word, ...]) -> Launch:
    if module == CLI_MODULE:
        return _vllm((Word("vllm"), *rest))
    return Launch(Started.MODULE, " ".join(word.text for word in words), rest, module)


def _container(words: Sequence[Word]) -> tuple[Launch, list[Variable]] | None:
    """`docker run [options] IMAGE [arguments]` of an image that has vLLM in its name."""
    place = next((index for index, word in enumerate(words) if word.text in ("run", "create")), None)
    if place is None:
        return None
    variables: list[Variable] = []
    entrypoint: Word | None = None
    place += 1
    while place < len(words) and words[place].text.startswith("-"):
        word = words[place]
        name, equals, value = word.text.partition("=")
        following = words[place + 1] if place + 1 < len(words) else Word("")
        attached = not name.startswith("--") and len(word.text) > 2  # noqa: PLR2004  -p8000:8000
        if name in ("-e", "--env") or word.text.startswith("-e"):
            inside = replace(word, text=value) if name == "--env" and equals else replace(word, text=word.text[2:])
            pair = assignment(following if word.text in ("-e", "--env") else inside)
            variables += [Variable(*pair)] if pair is not None else []
        elif name == "--entrypoint":
            entrypoint = replace(word, text=value) if equals else following
        lone = name in _LONE_LONG or (not name.startswith("--") and set(name[1:]) <= _LONE_SHORT)
        place += 1 if equals or lone or attached else 2
    if place >= len(words) or not runs_vllm(words[place].text):
        return None
    image, rest = words[place].text, tuple(words[place + 1 :])
    if entrypoint is not None:
        rest = (entrypoint, *rest)
    found = launch_of(image, rest, subject=f"{words[0].text} run {image}")
    return (found[0], [*variables, *found[1]]) if found is not None else None


def _kubectl(words: Sequence[Word]) -> tuple[Launch, list[Variable]] | None:
    """`kubectl run NAME --image=IMAGE [options] -- arguments`; with --command they take the entrypoint's place."""
    texts = [word.text for word in words]
    if "run" not in texts[1:]:
        return None
    end = texts.index("--") if "--" in texts else len(texts)
    image, own_entrypoint = "", True
    variables: list[Variable] = []
    for place, word in enumerate(words[:end]):
        name, equals, value = word.text.partition("=")
        inside = replace(word, text=value) if equals else words[place + 1] if place + 1 < end else Word("")
        if name == "--image":
            image = inside.text
        elif name == "--env" and (pair := assignment(inside)) is not None:
            variables.append(Variable(*pair))
        elif name == "--command":
            own_entrypoint = value == "false"
    found = launch_of(image, tuple(words[end + 1 :]), own_entrypoint=own_entrypoint and runs_vllm(image))
    return (found[0], [*variables, *found[1]]) if found is not None else None


def runs_vllm(image: str) -> bool:
    """Whether an image has vLLM in its name."""
    return "vllm" in image


def launch_of(
    image: str, words: tuple[Word, ...], *, own_entrypoint: bool = True, subject: str = ""
) -> tuple[Launch, list[Variable]] | None:
    """What a container starts with its words; None where they start another program.

    Without a program among the words, and with the image's own entrypoint, they are arguments of that.
    """
    release = match.group(1) if (match := _IMAGE_RELEASE.search(image)) else None
    plain = bool(words) and not words[0].text.startswith("-")
    inner = _launch(words) if plain or (words and not image and not own_entrypoint) else None
    if inner is not None and (inner[0].started is not Started.FLAGS_ONLY or not image):
        return replace(inner[0], release=release, image=image), inner[1]
    if plain and (script := _inner_script(words)) is not None:
        paste = paste_of(script)
        if paste.launches:
            return replace(paste.launches[0], release=release, image=image), list(paste.variables)
    if not own_entrypoint:
        return None
    return Launch(Started.IMAGE, subject or f"image {image}", words, image, release, image), []
