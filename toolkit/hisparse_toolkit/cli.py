"""The `hisparse` command. Commands load what they need when they run, so that a plan takes less than a second."""

from __future__ import annotations

import contextlib
import difflib
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand

from hisparse_toolkit.problems import BadInputError, ExitCode, Problem
from hisparse_toolkit.streams import outlets, tell

_EPILOG: Final = (
    "Exit codes: 0 yes or ok, 1 a warning, 2 bad input, 3 no (does not fit, failed), 4 could not find out, 70 a bug "
    "of this command."
)
DEBUG: Final = "HISPARSE_DEBUG"
# how near a name has to be before it is offered: --bogus is not --gpus
_NEAR: Final = 0.7


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
def plan(
    *,
    file: _File = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            metavar="NAME",
            help="GLM-5.3, owner/name of a public model, or the path of a config.json.",
            rich_help_panel="What is served",
        ),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Size of the weight files, as in 704Gi.", rich_help_panel="What is served"),
    ] = None,
    context: Annotated[
        str | None,
        typer.Option(metavar="TOKENS", help="The longest request, as in 1M.", rich_help_panel="What is served"),
    ] = None,
    typical: Annotated[
        str | None,
        typer.Option(
            metavar="TOKENS", help="What requests usually have, as in 128K.", rich_help_panel="What is served"
        ),
    ] = None,
    concurrency: Annotated[
        str | None,
        typer.Option(metavar="N", help="Requests at once (--max-num-seqs).", rich_help_panel="What is served"),
    ] = None,
    rope_factor: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBER",
            help="By how much positions are stretched beyond those of the model, as in 4.",
            rich_help_panel="What is served",
        ),
    ] = None,
    rope_original: Annotated[
        str | None,
        typer.Option(
            metavar="TOKENS",
            help="Positions that the model was trained with, as in 32K.",
            rich_help_panel="What is served",
        ),
    ] = None,
    rope_type: Annotated[
        str | None,
        typer.Option(
            metavar="WORD",
            help="Yarn, Linear or Dynamic; Yarn where only the factor is said.",
            rich_help_panel="What is served",
        ),
    ] = None,
    gpus: Annotated[
        str | None, typer.Option(metavar="N", help="GPUs of one replica.", rich_help_panel="Hardware")
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="h200, h100, a100-80, l40s, or an nvidia.com/gpu.product; h200 unless the manifest names one.",
            rich_help_panel="Hardware",
        ),
    ] = None,
    node_gpus: Annotated[
        str | None, typer.Option(metavar="N", help="GPUs of one node; 8 if not said.", rich_help_panel="Hardware")
    ] = None,
    host_memory: Annotated[
        str | None,
        typer.Option(
            "--host-memory",
            "--node-memory",
            metavar="SIZE",
            help="Allocatable memory of one node, as in 2Ti; not judged if not said.",
            rich_help_panel="Hardware",
        ),
    ] = None,
    pod_memory: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="The pod's own memory limit, as in 700Gi.", rich_help_panel="Hardware"),
    ] = None,
    mode: Annotated[
        str | None,
        typer.Option(metavar="MODE", help="Auto, HiSparse, Offload or None.", rich_help_panel="KV cache"),
    ] = None,
    kv_dtype: Annotated[
        str | None, typer.Option(metavar="DTYPE", help="Auto, Bf16 or Fp8.", rich_help_panel="KV cache")
    ] = None,
    host_pool: Annotated[
        str | None, typer.Option(metavar="SIZE", help="The host pool, as in 400Gi.", rich_help_panel="KV cache")
    ] = None,
    sharing: Annotated[
        str | None,
        typer.Option(
            metavar="WORD",
            help="Auto, RequireShared or Private: one pool for all ranks, or one for each.",
            rich_help_panel="KV cache",
        ),
    ] = None,
    tensor: Annotated[
        str | None,
        typer.Option(metavar="N", help="Tensor parallel size; --gpus if not said.", rich_help_panel="Engine"),
    ] = None,
    data: Annotated[str | None, typer.Option(metavar="N", help="Data parallel size.", rich_help_panel="Engine")] = None,
    batched_tokens: Annotated[
        str | None, typer.Option(metavar="N", help="Tokens of one prefill chunk.", rich_help_panel="Engine")
    ] = None,
    utilization: Annotated[
        str | None,
        typer.Option(metavar="PERCENT", help="Share of HBM that the engine may budget.", rich_help_panel="Engine"),
    ] = None,
    pipeline: Annotated[
        str | None,
        typer.Option(metavar="N", help="Pipeline parallel size; HiSparse needs 1.", rich_help_panel="Engine"),
    ] = None,
    expert: Annotated[
        bool | None,
        typer.Option("--expert/--no-expert", help="Spread whole experts over the GPUs.", rich_help_panel="Engine"),
    ] = None,
    engine_version: Annotated[
        str | None, typer.Option(metavar="VERSION", help="vLLM release, as in 0.33.", rich_help_panel="Engine")
    ] = None,
    no_hub: Annotated[
        bool, typer.Option("--no-hub", help="Never ask the Hugging Face hub (also HISPARSE_NO_HUB=1).")
    ] = False,
    plot: Annotated[bool, typer.Option("--plot", help="Draw concurrency by length as well.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print hisparse.dev/plan/v1 instead.")] = False,
) -> int:
    """Options in, exit code out."""
    from hisparse_toolkit.plan_command import View, run_plan  # noqa: PLC0415
    from hisparse_toolkit.question import Options  # noqa: PLC0415

    options = Options(
        model=model,
        weights=weights,
        context=context,
        typical=typical,
        concurrency=concurrency,
        batched_tokens=batched_tokens,
        kv_dtype=kv_dtype,
        rope_type=rope_type,
        rope_factor=rope_factor,
        rope_original=rope_original,
        mode=mode,
        host_pool=host_pool,
        sharing=sharing,
        gpus=gpus,
        pod_memory=pod_memory,
        utilization=utilization,
        tensor=tensor,
        data=data,
        pipeline=pipeline,
        expert=expert,
        engine_version=engine_version,
        gpu=gpu,
        node_gpus=node_gpus,
        host_memory=host_memory,
        no_hub=no_hub,
    )
    return run_plan(file, options, View(as_json=as_json, plot=plot))


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


def _run(words: Sequence[str]) -> int:
    try:
        code = app(list(words), standalone_mode=False, prog_name="hisparse")
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
    if "plan" in words and "--json" in words:
        from hisparse_toolkit.plan_command import print_problem  # noqa: PLC0415

        field = getattr(error, "option_name", None) or "command line"
        print_problem(BadInputError([Problem(field, message)]))
    tell(f"{name}: {message}")
    tell(f"{name} --help says more")
    return ExitCode.BAD_INPUT


def _bug(error: Exception) -> int:
    if os.environ.get(DEBUG, "0") not in ("", "0"):
        traceback.print_exc()
    said = str(error).strip().splitlines()
    what = f"{type(error).__name__}: {said[0]}" if said else type(error).__name__
    tell(f"hisparse: this is a bug of hisparse ({what}); {DEBUG}=1 shows where, please report it with the command")
    return ExitCode.BUG


if __name__ == "__main__":
    sys.exit(main())
