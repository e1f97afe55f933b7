"""Run by the Python of a real vLLM: parse command lines of `vllm serve` from stdin, say which ones vLLM takes.

In: a JSON list of lists of words. Out, as the last line: {"names": [...], "limits": {...}, "taken": [true, ...]}.
Taken is what the parser takes and whose numbers keep to the limits of the config classes that it was made from.
"""

import contextlib
import importlib
import io
import json
import sys
from typing import Annotated, Any

_BOUNDS = ("ge", "gt", "le", "lt")


def limited_fields(classes: list[Any]) -> dict[str, Any]:
    """The fields with bounds of the configs that get_kwargs() was asked for: as Class.name, and the first as name."""
    found: dict[str, Any] = {}
    for one in classes:
        for name, entry in getattr(one, "__pydantic_fields__", {}).items():
            if bounds_of(entry):
                found[f"{one.__name__}.{name}"] = entry
                found.setdefault(name, entry)
    return found


def bounds_of(entry: Any) -> list[str]:
    """The bounds as known.py writes them, sorted."""
    given = [(bound, getattr(one, bound, None)) for one in entry.metadata for bound in _BOUNDS]
    return sorted(f"{bound}={number}" for bound, number in given if number is not None)


def main() -> None:
    """Read all, answer once: importing vLLM takes half a minute."""
    arguments = importlib.import_module("vllm.utils.argparse_utils")
    engine = importlib.import_module("vllm.engine.arg_utils")
    adapter = importlib.import_module("pydantic").TypeAdapter
    server = importlib.import_module("vllm.entrypoints.launchers.cli_args")
    asked: list[Any] = []
    get_kwargs = engine.get_kwargs

    def recorded(one: Any) -> Any:
        asked.append(one)
        entries = get_kwargs(one)
        for name, entry in entries.items():
            # an argument keeps its help whatever it is called, so this says where its number ends
            entry["help"] = f"{one.__name__}.{name}"
        return entries

    vars(engine)["get_kwargs"] = recorded
    parser = arguments.FlexibleArgumentParser(prog="vllm")
    serve = parser.add_subparsers(required=False, dest="subparser").add_parser("serve")
    server.make_arg_parser(serve)
    known = limited_fields(asked)
    fields: dict[str, Any] = {}
    for action in serve._option_string_actions.values():
        if (entry := known.get(action.help, known.get(action.dest))) is not None:
            fields[action.dest] = entry
    adapters = {name: adapter(Annotated[one.annotation, *one.metadata]) for name, one in fields.items()}
    taken = []
    for words in json.load(sys.stdin):
        try:
            with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
                said = vars(parser.parse_args(["serve", *words]))
            for name in adapters.keys() & said.keys():
                if said[name] is not None:
                    adapters[name].validate_python(said[name])
        except (SystemExit, ValueError):
            taken.append(False)
        else:
            taken.append(True)
    names = serve._option_string_actions
    limits = {name: " ".join(bounds_of(fields[action.dest])) for name, action in names.items() if action.dest in fields}
    sys.stdout.write(f"\n{json.dumps({'names': sorted(names), 'limits': limits, 'taken': taken})}\n")


if __name__ == "__main__":
    main()
