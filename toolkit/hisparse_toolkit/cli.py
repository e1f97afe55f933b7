"""The `hisparse` command. Commands load what they need when they run, so that a plan takes less than a second."""

from __future__ import annotations

import contextlib
import difflib
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand
from typer.main import get_command

from hisparse_toolkit.asking import OF_MEMORY, SEVERAL_GPUS, WHOLE_ANSWERS, Wishes, asks
from hisparse_toolkit.problems import BadInputError, ExitCode, Problem
from hisparse_toolkit.streams import outlets, tell

_EPILOG: Final = (
    "Exit codes: 0 yes or ok, 1 a warning, 2 bad input, 3 no (does not fit, failed), 4 could not find out, 70 a bug "
    "of this command."
)
DEBUG: Final = "HISPARSE_DEBUG"
# how near a name has to be before it is offered: --bogus is not --gpus
_NEAR: Final = 0.7

_ANSWERED: Final[Mapping[tuple[str, str], str]] = {
    ("fit-gpus", "--gpus"): "their number is its answer: --node-gpus limits it, --gpu names one kind",
    ("fit-context", "--context"): "it is its answer: hisparse plan asks about one context",
}
"""What is asked of a command that finds it out."""


class _Command(TyperCommand):
    """A command that knows which option was meant."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401  typer's own context type is private
        try:
            return list(super().parse_args(ctx, args))
        except typer.TyperException as error:
            wrong = getattr(error, "option_name", None)
            if isinstance(wrong, str):
                # typer would add its own, which are prefixes only
                vars(error)["possibilities"] = None
                vars(error)["ctx"] = ctx
                error.message = self._fault_of(wrong, error.message)
            raise

    def _fault_of(self, wrong: str, said: str) -> str:
        """An option that this command has lacks its value or has one too many; another does not exist."""
        options = {word: parameter for parameter in self.params for word in getattr(parameter, "opts", ())}
        if wrong not in options and (self.name, wrong) in _ANSWERED:
            return f"{wrong} is no option of this command; {_ANSWERED[str(self.name), wrong]}"
        if wrong not in options:
            return _unknown_option(wrong, list(options))
        if getattr(options[wrong], "is_flag", False):
            return f"{wrong} is a switch and takes no value; write it alone"
        if "requires an argument" in said:
            return f"{wrong} has no value; write one after it, as in {wrong} {_example(options[wrong])}"
        return said


def _example(parameter: Any) -> str:  # noqa: ANN401  typer's parameter
    return str(getattr(parameter, "metavar", None) or "VALUE")


def _unknown_option(wrong: str, known: Sequence[str]) -> str:
    starts = [name for name in known if name.startswith(wrong)]
    # without the dashes, which are alike in all of them
    bare = {name.lstrip("-"): name for name in known}
    close = starts or [bare[one] for one in difflib.get_close_matches(wrong.lstrip("-"), bare, n=1, cutoff=_NEAR)]
    hint = f"; did you mean {' or '.join(close)}?" if close else ""
    return f"{wrong} is no option of this command{hint}"


app = typer.Typer(
    help="Plan, render and try out vLLM with a tiered KV cache for long contexts.",
    epilog=_EPILOG,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def _common(
    ctx: typer.Context,
    *,
    version: Annotated[bool, typer.Option("--version", help="Print the version and end.", is_eager=True)] = False,
) -> None:
    if version:
        from importlib.metadata import version as version_of  # noqa: PLC0415

        print(f"hisparse {version_of('hisparse')}")
        raise typer.Exit
    if ctx.invoked_subcommand is None:
        # typer prints a rich help itself and returns a plain one
        with contextlib.redirect_stdout(sys.stderr):
            print(ctx.get_help())
        raise typer.Exit(ExitCode.BAD_INPUT)


_PLAN_HELP: Final = """Say whether a model fits, what it costs, what binds, and the command that runs it.

Needs no cluster and no GPU. Options that are given with -f win over what the manifest says.

[bold]Examples[/bold]

  hisparse plan --model GLM-5.3-FP8 --context 1M --gpus 8 --host-memory 2Ti

  hisparse plan -f examples/glm-5.3-1m.yaml --gpus 4

  hisparse plan --model ./my-model/config.json --weights 141Gi --context 128K --gpus 4 --gpu h100

  kubectl get hsi glm-5-3 -o yaml | hisparse plan -f - --json
"""

_File = Annotated[
    str | None,
    typer.Option("--file", "-f", metavar="FILE", help="A manifest with one HiSparseInference; - is stdin."),
]


@app.command(cls=_Command, help=_PLAN_HELP, epilog=_EPILOG)
@asks()
def plan(
    *,
    file: _File = None,
    wishes: Wishes,
    plot: Annotated[bool, typer.Option("--plot", help="Draw concurrency by length as well.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print hisparse.dev/plan/v1 instead.")] = False,
) -> int:
    """Options in, exit code out."""
    from hisparse_toolkit.plan_command import View, run_plan  # noqa: PLC0415
    from hisparse_toolkit.question import Options  # noqa: PLC0415

    return run_plan(file, Options(**wishes), View(as_json=as_json, plot=plot))


_FIT_CONTEXT_HELP: Final = """Say the longest context that a model and its GPUs hold, to the token, and what ends it.

Where the model's positions end before the memory does, it says so, and what RoPE scaling would give.

[bold]Examples[/bold]

  hisparse fit-context --model Llama-3.1-8B --gpus 1 --gpu rtx-4090

  hisparse fit-context --model GLM-5.3-Flash --gpus 4 --concurrency 8

  hisparse fit-context -f examples/glm-5.3-1m.yaml --gpus 8 --mode None
"""


@app.command("fit-context", cls=_Command, help=_FIT_CONTEXT_HELP, epilog=_EPILOG)
@asks("context", concurrency="Requests of that length that have to run at once; 1 if not said.")
def fit_context(
    *,
    file: _File = None,
    wishes: Wishes,
    as_json: Annotated[bool, typer.Option("--json", help="Print hisparse.dev/fit-context/v1 instead.")] = False,
) -> int:
    """Options in, exit code out."""
    from hisparse_toolkit.fit_context_command import run_fit_context  # noqa: PLC0415
    from hisparse_toolkit.question import Options  # noqa: PLC0415

    return run_fit_context(file, Options(**wishes), as_json=as_json)


_FIT_GPUS_HELP: Final = """Say the fewest GPUs that hold a context, for each kind of GPU, and which kinds cannot.

All GPUs are on one node and share one model by tensor parallelism: 1, 2, 4 ... as far as the model's heads allow.

[bold]Examples[/bold]

  hisparse fit-gpus --model Llama-3.1-70B --context 128K

  hisparse fit-gpus --model GLM-5.3-Flash --context 500K --gpu h200 --concurrency 4

  hisparse fit-gpus --model Llama-3.3-70B-Instruct --context 2M --gpu h200
"""


@app.command("fit-gpus", cls=_Command, help=_FIT_GPUS_HELP, epilog=_EPILOG)
@asks(
    *SEVERAL_GPUS,
    *WHOLE_ANSWERS,
    "sharing",
    concurrency="Requests of --context tokens that have to run at once; 1 if not said.",
    gpu="Only this kind, as in h200; every known kind if not said.",
)
def fit_gpus(
    *,
    file: _File = None,
    wishes: Wishes,
    as_json: Annotated[bool, typer.Option("--json", help="Print hisparse.dev/fit-gpus/v1 instead.")] = False,
) -> int:
    """Options in, exit code out."""
    from hisparse_toolkit.fit_gpus_command import run_fit_gpus  # noqa: PLC0415
    from hisparse_toolkit.question import Options  # noqa: PLC0415

    return run_fit_gpus(file, Options(**wishes), as_json=as_json)


_COMPARE_HELP: Final = """Put variants of a plan side by side: what fits, how long, how many at once, and what is lost.

One thing changes at a time: modes, KV dtypes and numbers of GPUs, or what --models and --gpu-kinds name.

[bold]Examples[/bold]

  hisparse compare --model GLM-5.3-FP8 --context 1M --gpus 8

  hisparse compare --models GLM-5.3-FP8,GLM-5.3-Flash --context 1M --gpus 8

  hisparse compare --model Llama-3.1-70B --context 128K --gpus 4 --gpu-kinds h100,h200,b200
"""


@app.command(cls=_Command, help=_COMPARE_HELP, epilog=_EPILOG)
@asks()
def compare(
    *,
    file: _File = None,
    wishes: Wishes,
    models: Annotated[
        str | None, typer.Option(metavar="A,B", help="Models to compare; the first is the one asked about.")
    ] = None,
    gpu_kinds: Annotated[str | None, typer.Option(metavar="A,B", help="Kinds of GPU to compare with --gpu.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print hisparse.dev/compare/v1 instead.")] = False,
) -> int:
    """Options in, exit code out."""
    from hisparse_toolkit.compare_command import Others, run_compare  # noqa: PLC0415
    from hisparse_toolkit.question import Options  # noqa: PLC0415

    return run_compare(file, Options(**wishes), Others(models, gpu_kinds), as_json=as_json)


_EXPLAIN_HELP: Final = """Show every term of a plan with its formula in numbers and its source, to redo it by hand.

[bold]Examples[/bold]

  hisparse explain --model GLM-5.3-FP8 --context 1M --gpus 8

  hisparse explain --model gpt-oss-20b --context 128K --gpus 1 --gpu rtx-4090

  hisparse explain -f examples/glm-5.3-1m.yaml --json
"""


@app.command(cls=_Command, help=_EXPLAIN_HELP, epilog=_EPILOG)
@asks()
def explain(
    *,
    file: _File = None,
    wishes: Wishes,
    as_json: Annotated[bool, typer.Option("--json", help="Print hisparse.dev/explain/v1 instead.")] = False,
) -> int:
    """Options in, exit code out."""
    from hisparse_toolkit.explain_command import run_explain  # noqa: PLC0415
    from hisparse_toolkit.question import Options  # noqa: PLC0415

    return run_explain(file, Options(**wishes), as_json=as_json)


_CURVE_HELP: Final = """Draw how many requests run at once by their length, and how much more the tier holds.

[bold]Examples[/bold]

  hisparse curve --model GLM-5.3-FP8 --context 1M --gpus 8

  hisparse curve --model Llama-3.1-8B --context 128K --gpus 1
"""


@app.command(cls=_Command, help=_CURVE_HELP, epilog=_EPILOG)
@asks()
def curve(
    *,
    file: _File = None,
    wishes: Wishes,
    as_json: Annotated[bool, typer.Option("--json", help="Print hisparse.dev/curve/v1 instead.")] = False,
) -> int:
    """Options in, exit code out."""
    from hisparse_toolkit.curve_command import run_curve  # noqa: PLC0415
    from hisparse_toolkit.question import Options  # noqa: PLC0415

    return run_curve(file, Options(**wishes), as_json=as_json)


_TIME_HELP: Final = """Say how long a prefill takes, how fast decoding can be, and whether a claimed speed is possible.

Prefill seconds are estimates, decode speeds are upper bounds. A claim ends with 0 plausible, 1 faster than the best
that is known, 3 faster than the hardware's peak.

[bold]Examples[/bold]

  hisparse time --model GLM-5.3-FP8 --context 1M --gpus 8

  hisparse time --model shape/dense-32b --context 800000 --gpus 2 --gpu a100-80 --claim 78s

  hisparse time --model Llama-3.1-70B --context 128K --gpus 4 --claim-tokens-per-second 18.7 --batch 1
"""


@app.command(cls=_Command, help=_TIME_HELP, epilog=_EPILOG)
@asks(*OF_MEMORY)
def time(
    *,
    file: _File = None,
    wishes: Wishes,
    claim: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Judge this prefill of --context tokens, as in 78s.", rich_help_panel="Claims"
        ),
    ] = None,
    claim_tokens_per_second: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBER", help="Judge this decode speed of each request, as in 18.7.", rich_help_panel="Claims"
        ),
    ] = None,
    batch: Annotated[
        str | None,
        typer.Option(metavar="N", help="Requests that decode at once; as many as fit.", rich_help_panel="Claims"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print hisparse.dev/time/v1 instead.")] = False,
) -> int:
    """Options in, exit code out."""
    from hisparse_toolkit.question import Options  # noqa: PLC0415
    from hisparse_toolkit.time_answer import ClaimWords  # noqa: PLC0415
    from hisparse_toolkit.time_command import run_time  # noqa: PLC0415

    return run_time(file, Options(**wishes), ClaimWords(claim, claim_tokens_per_second, batch), as_json=as_json)


_RENDER_HELP: Final = """Print the objects that the operator would make of a manifest, without a cluster.

[bold]Examples[/bold]

  hisparse render -f examples/glm-5.3-1m.yaml

  hisparse render -f examples/llama-3.1-8b.yaml --product NVIDIA-L40S --node-gpus 4 --node-memory 512Gi
"""


@app.command(cls=_Command, help=_RENDER_HELP, epilog=_EPILOG)
def render(
    *,
    file: _File = None,
    product: Annotated[
        str | None,
        typer.Option(
            "--product",
            "--gpu",
            metavar="NAME",
            help="The nodes' nvidia.com/gpu.product; those of the manifest, else NVIDIA-H200.",
        ),
    ] = None,
    node_gpus: Annotated[str, typer.Option(metavar="N", help="GPUs of one node.")] = "8",
    node_memory: Annotated[
        str, typer.Option("--node-memory", "--host-memory", metavar="SIZE", help="Allocatable memory of one node.")
    ] = "2Ti",
    engine_image: Annotated[
        str | None, typer.Option(metavar="IMAGE", help="The engine image that the operator was installed with.")
    ] = None,
    no_hub: Annotated[
        bool, typer.Option("--no-hub", help="Never ask the Hugging Face hub (also HISPARSE_NO_HUB=1).")
    ] = False,
) -> int:
    """Options in, exit code out."""
    from hisparse_toolkit.render_command import Hardware, run_render  # noqa: PLC0415

    return run_render(file, Hardware(product, node_gpus, node_memory), no_hub=no_hub, engine_image=engine_image)


_DEMO_HELP: Final = """Run the main job on a local Kubernetes with two simulated 8 x H200 servers, and clean up.

Prints each command that it runs, so that you can repeat it by hand. Takes about a minute once the control plane has
been built, which takes about 14 minutes the first time. Needs the source checkout.

[bold]Examples[/bold]

  hisparse demo

  hisparse demo --kubeconfig ~/.kube/config
"""


@app.command(cls=_Command, help=_DEMO_HELP, epilog=_EPILOG)
def demo(
    *,
    kubeconfig: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Play on this cluster instead, in a namespace of its own."),
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave everything running at the end.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Replace a CRD of another version.")] = False,
    wait: Annotated[str, typer.Option(metavar="SECONDS", help="The longest wait of one step.")] = "60",
) -> int:
    """Options in, exit code out."""
    from hisparse_toolkit.counts import bounded  # noqa: PLC0415

    try:
        wait_s = bounded("--wait", wait)
    except BadInputError as error:
        tell(error)
        return error.code
    try:
        from hisparse_toolkit.demo import DemoOptions, run_demo  # noqa: PLC0415
    except ModuleNotFoundError as error:
        tell(f"demo: {error.name} is not installed; run `make setup` in the source checkout")
        return ExitCode.UNKNOWN
    return run_demo(DemoOptions(kubeconfig, keep=keep, yes=yes, wait_s=wait_s))


_FLAGS_HELP: Final = """Say of every flag and variable of a vLLM command whether it is real, and what to write instead.

Takes the command as it stands in an article or a script: in quotes, as words, or from a file or stdin. A Kubernetes
manifest, a compose file or a Dockerfile is read as well. Ends with 4 where nothing in it could be judged.

[bold]Examples[/bold]

  hisparse flags 'vllm serve zai-org/GLM-5.3 --swap-space 128 --block-size 256'

  hisparse flags --json -- vllm serve zai-org/GLM-5.3 --swap-space 128

  hisparse flags --engine-version 0.32 - < start.sh
"""


@app.command(
    cls=_Command,
    help=_FLAGS_HELP,
    epilog=_EPILOG,
    # the options of the command that is judged are not ours
    context_settings={"ignore_unknown_options": True},
)
def flags(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="COMMAND", help="The command; - is stdin.", show_default=False)
    ] = None,
    *,
    file: Annotated[
        str | None, typer.Option("--file", "-f", metavar="FILE", help="A file that holds the command; - is stdin.")
    ] = None,
    engine_version: Annotated[
        str | None,
        typer.Option(
            metavar="VERSION", help="vLLM release, as in 0.33; that of the image in the command, else the pinned one."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print hisparse.dev/flags/v1 instead.")] = False,
) -> int:
    """Options in, exit code out."""
    from hisparse_toolkit.flags_command import Question, run_flags  # noqa: PLC0415

    return run_flags(Question(tuple(words or ()), file, engine_version), as_json=as_json)


_CHECK_HELP: Final = """Run every check of the node agent once, on this machine: GPUs, links, heat, PCIe, host memory.

Reads only; needs no cluster and no root, and on a machine without a GPU it says what does not apply.

Exit code 0 all is well, 1 a warning, 3 critical, 4 what decides could not be read.

[bold]Examples[/bold]

  hisparse check

  hisparse check --all

  hisparse check --json --rdma

  hisparse check --replay recordings/
"""


@app.command(cls=_Command, help=_CHECK_HELP, epilog=_EPILOG)
def check(
    *,
    rdma: Annotated[
        bool, typer.Option("--rdma", help="An engine here uses an RDMA connector: judge that path, too.")
    ] = False,
    every: Annotated[bool, typer.Option("--all", help="Show what is Ok or Unsupported as well, and why.")] = False,
    replay: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Judge a recording of hisparse-agent --record in place of this machine: its last reading, with rates "
            "from those before.",
        ),
    ] = None,
    deadline: Annotated[str, typer.Option(metavar="SECONDS", help="How long NVML may take.")] = "10",
    as_json: Annotated[bool, typer.Option("--json", help="Print hisparse.dev/check/v1 instead.")] = False,
) -> int:
    """Options in, exit code out."""
    from hisparse_toolkit.answering import say  # noqa: PLC0415
    from hisparse_toolkit.counts import bounded  # noqa: PLC0415

    try:
        from hisparse_toolkit.check_command import Question, answer  # noqa: PLC0415
    except ModuleNotFoundError as error:
        tell(f"check: {error.name} is not installed; pip install 'hisparse[agent]'")
        return ExitCode.UNKNOWN
    return say("check", lambda: answer(Question(rdma, every, replay, bounded("--deadline", deadline))), as_json=as_json)


_MODELS_HELP: Final = """List the models that can be named without their config.json.

[bold]Examples[/bold]

  hisparse models

  hisparse models qwen3
"""


@app.command(cls=_Command, help=_MODELS_HELP, epilog=_EPILOG)
def models(
    *,
    word: Annotated[str | None, typer.Argument(metavar="NAME", help="Only those with this in their name.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print hisparse.dev/models/v1 instead.")] = False,
) -> int:
    """Options in, exit code out."""
    from hisparse_toolkit.models_command import run_models  # noqa: PLC0415

    return run_models(word, as_json=as_json)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; what goes wrong is one line on stderr."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    with outlets() as streams:
        if streams is None:
            tell("stdout: is closed, so there is nowhere to write the answer; leave it open, or send it to /dev/null")
            return ExitCode.UNKNOWN
        code = _run(words)
        why = streams.unwritable()
        if why is not None:
            tell(f"stdout: the answer could not be written ({why}); write it to another file or disk")
            return ExitCode.UNKNOWN
    return code


@cache
def _command() -> Callable[..., Any]:
    """The commands and their options, which take longer to be put together than most answers."""
    return get_command(app)


def _run(words: Sequence[str]) -> int:
    try:
        code = _command()(list(words), standalone_mode=False, prog_name="hisparse")
    except typer.Abort:
        tell("hisparse: stopped")
        return ExitCode.INTERRUPTED
    except typer.TyperException as error:
        return _bad_words(words, error)
    except Exception as error:  # noqa: BLE001  nothing that we can name: a bug, and never one of the answers' codes
        return _bug(error)
    return int(code or 0)


def _bad_words(words: Sequence[str], error: typer.TyperException) -> int:
    context = getattr(error, "ctx", None)
    name = context.command_path if context is not None else "hisparse"
    message = error.format_message()
    extra = message.removeprefix("Got unexpected extra argument(s) (")
    if extra != message:
        message = f"{extra.removesuffix(')')} belongs to no option; write the option before it, as in --model NAME"
    if "--json" in words:
        field = getattr(error, "option_name", None) or "command line"
        _print_problem(words, BadInputError([Problem(field, message)]))
    tell(f"{name}: {message}")
    tell(f"{name} --help says more")
    return ExitCode.BAD_INPUT


def _print_problem(words: Sequence[str], error: BadInputError) -> None:
    """The JSON document of a command whose words mean nothing."""
    if next((word for word in words if not word.startswith("-")), "") == "flags":
        # its words may hold the name of any command
        from hisparse_toolkit.flags_command import print_problem as print_flags_problem  # noqa: PLC0415

        print_flags_problem(error)
    elif "plan" in words:
        from hisparse_toolkit.plan_command import print_problem  # noqa: PLC0415

        print_problem(error)
    elif "time" in words:
        from hisparse_toolkit.time_command import print_problem as print_time_problem  # noqa: PLC0415

        print_time_problem(error)
    elif "models" in words:
        from hisparse_toolkit.models_command import print_problem as print_models_problem  # noqa: PLC0415

        print_models_problem(error)
    else:
        from hisparse_toolkit.answering import SCHEMAS  # noqa: PLC0415
        from hisparse_toolkit.answering import print_problem as print_its_problem  # noqa: PLC0415

        command = next((word for word in words if word in SCHEMAS), None)
        if command is not None:
            print_its_problem(command, error)


def _bug(error: Exception) -> int:
    if os.environ.get(DEBUG, "0") not in ("", "0"):
        traceback.print_exc()
    said = str(error).strip().splitlines()
    what = f"{type(error).__name__}: {said[0]}" if said else type(error).__name__
    tell(f"hisparse: this is a bug of hisparse ({what}); {DEBUG}=1 shows where, please report it with the command")
    return ExitCode.BUG


if __name__ == "__main__":
    sys.exit(main())
