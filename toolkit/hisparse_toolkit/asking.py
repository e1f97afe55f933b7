"""The options of a question, once: typer has no groups of parameters, and many commands ask about a model on GPUs."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Annotated, Any, Final, TypeAlias, TypeVar

import typer

Wishes: TypeAlias = Mapping[str, Any]
"""What was said, by the fields of `hisparse_toolkit.question.Options`."""

_Command = TypeVar("_Command", bound=Callable[..., int])

_SERVED: Final = "What is served"
_HARDWARE: Final = "Hardware"
_CACHE: Final = "KV cache"
_ENGINE: Final = "Engine"


def _text(*names: str, metavar: str, told: str, panel: str) -> Any:  # noqa: ANN401  an annotation
    return Annotated[str | None, typer.Option(*names, metavar=metavar, help=told, rich_help_panel=panel)]


_OPTIONS: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "model": _text(
            "--model",
            "-m",
            metavar="NAME",
            told="GLM-5.3, owner/name of a public model, or the path of a config.json.",
            panel=_SERVED,
        ),
        "weights": _text(metavar="SIZE", told="Size of the weight files, as in 704Gi.", panel=_SERVED),
        "context": _text(metavar="TOKENS", told="The longest request, as in 1M.", panel=_SERVED),
        "typical": _text(metavar="TOKENS", told="What requests usually have, as in 128K.", panel=_SERVED),
        "concurrency": _text(
            metavar="N", told="Requests at once, at most (--max-num-seqs); they count as --typical long.", panel=_SERVED
        ),
        "rope_factor": _text(
            metavar="NUMBER",
            told="By how much positions are stretched beyond those of the model, as in 4.",
            panel=_SERVED,
        ),
        "rope_original": _text(
            metavar="TOKENS", told="Positions that the model was trained with, as in 32K.", panel=_SERVED
        ),
        "rope_type": _text(
            metavar="WORD", told="Yarn, Linear or Dynamic; Yarn where only the factor is said.", panel=_SERVED
        ),
        "gpus": _text(metavar="N", told="GPUs of one replica.", panel=_HARDWARE),
        "gpu": _text(
            metavar="NAME",
            told="h200, h100, a100-80, l40s, or an nvidia.com/gpu.product; h200 unless the manifest names one.",
            panel=_HARDWARE,
        ),
        "node_gpus": _text(metavar="N", told="GPUs of one node; 8 if not said.", panel=_HARDWARE),
        "host_memory": _text(
            "--host-memory",
            "--node-memory",
            metavar="SIZE",
            told="Allocatable memory of one node, as in 2Ti; not judged if not said.",
            panel=_HARDWARE,
        ),
        "pod_memory": _text(metavar="SIZE", told="The pod's own memory limit, as in 700Gi.", panel=_HARDWARE),
        "mode": _text(metavar="MODE", told="Auto, HiSparse, Offload or None.", panel=_CACHE),
        "kv_dtype": _text(
            metavar="DTYPE",
            told="Auto, Bf16, Fp8, Int8PerTokenHead, Int4PerTokenHead or a TurboQuant preset.",
            panel=_CACHE,
        ),
        "host_pool": _text(metavar="SIZE", told="The host pool, as in 400Gi.", panel=_CACHE),
        "sharing": _text(
            metavar="WORD",
            told="Auto, RequireShared or Private: one pool for all ranks, or one for each.",
            panel=_CACHE,
        ),
        "kv_memory": _text(
            metavar="SIZE",
            told="HBM for KV on each GPU as a log says it (Available KV cache memory), as in 30.5Gi.",
            panel=_CACHE,
        ),
        "tensor": _text(metavar="N", told="Tensor parallel size; --gpus if not said.", panel=_ENGINE),
        "data": _text(metavar="N", told="Data parallel size.", panel=_ENGINE),
        "batched_tokens": _text(metavar="N", told="Tokens of one prefill chunk.", panel=_ENGINE),
        "utilization": _text(metavar="PERCENT", told="Share of HBM that the engine may budget.", panel=_ENGINE),
        "pipeline": _text(metavar="N", told="Pipeline parallel size; HiSparse needs 1.", panel=_ENGINE),
        "mtp_tokens": _text(metavar="N", told="Tokens that the model's own MTP layers draft.", panel=_ENGINE),
        "decode_context": _text(
            "--decode-context",
            "--dcp",
            metavar="N",
            told="Ranks over which the tokens of a request are spread.",
            panel=_ENGINE,
        ),
        "expert": Annotated[
            bool | None,
            typer.Option("--expert/--no-expert", help="Spread whole experts over the GPUs.", rich_help_panel=_ENGINE),
        ],
        "engine_version": _text(metavar="VERSION", told="vLLM release, as in 0.33.", panel=_ENGINE),
    }
)
"""By the field of `hisparse_toolkit.question.Options`; a test compares the two."""

_NO_HUB: Final = Annotated[
    bool, typer.Option("--no-hub", help="Never ask the Hugging Face hub (also HISPARSE_NO_HUB=1).")
]

SEVERAL_GPUS: Final = ("gpus", "tensor", "data", "pipeline", "decode_context")
"""Those that say how many GPUs there are and how a model is spread over them."""

WHOLE_ANSWERS: Final = ("kv_memory",)
"""Those that hold for the one set-up that somebody has a log of."""

OF_MEMORY: Final = (
    "typical",
    "concurrency",
    "rope_factor",
    "rope_original",
    "rope_type",
    "node_gpus",
    "host_memory",
    "pod_memory",
    "host_pool",
    "sharing",
    "kv_memory",
    "utilization",
    "mtp_tokens",
    "decode_context",
    "expert",
    "engine_version",
)
"""Those that decide how much memory there is and what it holds, which the speeds of `hisparse time` do not ask for."""


def asks(*without: str, **words: str) -> Callable[[_Command], _Command]:
    """The command takes all options of a question but those named; it gets what was said as `wishes`.

    words are help texts that are other ones here. Its own parameters come behind, `file` first.
    """

    def decorate(command: _Command) -> _Command:
        own = inspect.signature(command, eval_str=True).parameters
        asked = {name: _told(option, words.get(name)) for name, option in _OPTIONS.items() if name not in without}
        asked["no_hub"] = _NO_HUB

        def parameter(name: str) -> inspect.Parameter:
            default = False if name == "no_hub" else None
            return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=asked[name])

        first = [one for name, one in own.items() if name == "file"]
        rest = [one for name, one in own.items() if name not in ("file", "wishes")]

        @functools.wraps(command)
        def taking(**said: Any) -> int:  # noqa: ANN401  whatever typer read
            wishes = {name: said.pop(name) for name in asked}
            return command(wishes=wishes, **said)

        parameters = [*first, *map(parameter, asked), *rest]
        vars(taking)["__signature__"] = inspect.Signature(parameters)
        taking.__annotations__ = {one.name: one.annotation for one in parameters}
        return taking  # type: ignore[return-value]

    return decorate


def _told(option: Any, words: str | None) -> Any:  # noqa: ANN401  an annotation
    if words is None:
        return option
    kind, info = option.__origin__, option.__metadata__[0]
    names = info.param_decls or ()
    return Annotated[kind, typer.Option(*names, metavar=info.metavar, help=words, rich_help_panel=info.rich_help_panel)]
