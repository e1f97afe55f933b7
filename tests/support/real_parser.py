"""Run by the Python of a real vLLM: parse command lines of `vllm serve` from stdin, say which ones its parser takes.

In: a JSON list of lists of words. Out, as the last line: {"names": [...], "taken": [true, ...]}.
"""

import contextlib
import importlib
import io
import json
import sys


def main() -> None:
    """Read all, answer once: importing vLLM takes half a minute."""
    arguments = importlib.import_module("vllm.utils.argparse_utils")
    server = importlib.import_module("vllm.entrypoints.launchers.cli_args")
    parser = arguments.FlexibleArgumentParser(prog="vllm")
    serve = parser.add_subparsers(required=False, dest="subparser").add_parser("serve")
    server.make_arg_parser(serve)
    taken = []
    for words in json.load(sys.stdin):
        try:
            with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
                parser.parse_args(["serve", *words])
        except (SystemExit, ValueError):
            taken.append(False)
        else:
            taken.append(True)
    sys.stdout.write(f"\n{json.dumps({'names': sorted(serve._option_string_actions), 'taken': taken})}\n")


if __name__ == "__main__":
    main()
