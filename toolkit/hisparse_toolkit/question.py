"""What is asked: a manifest, options, or options on top of a manifest, made into what the planner takes.

Options become fields of a spec and are judged as one, so that the command, the API server and the operator give the
same answer to the same wish.
"""

from __future__ import annotations

import copy
import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, TypeVar

from hisparse import catalogue, hardware
from hisparse.acceptance import accept
from hisparse.errors import SpecError, UnitError
from hisparse.hardware import Gpu, NodeClass
from hisparse.model import ModelFacts, facts_for, needs_hub, served_name
from hisparse.plan import Target
from hisparse.spec import HiSparseInferenceSpec, KvCacheDtype, TierMode, parse_spec
from hisparse.target import target_of
from hisparse.units import GIB, parse_quantity, parse_tokens
from hisparse_toolkit import hub
from hisparse_toolkit.manifest import Manifest
from hisparse_toolkit.model_source import LocalModel, local_model, named_source
from hisparse_toolkit.problems import BadInputError, NotFoundOutError, Problem, bad

DEFAULT_GPU: Final = "h200"
DEFAULT_NODE_GPUS: Final = 8

OPTION_OF: Final[Mapping[str, str]] = MappingProxyType(
    {
        "spec.model.huggingFace.repo": "--model",
        "spec.model.hostPath.path": "--model",
        "spec.model": "--model",
        "spec.model.config": "--model",
        "spec.model.facts.weights": "--weights",
        "spec.context.maxTokens": "--context",
        "spec.context": "--context",
        "spec.context.typicalTokens": "--typical",
        "spec.context.maxConcurrentRequests": "--concurrency",
        "spec.context.maxBatchedTokens": "--batched-tokens",
        "spec.context.kvCacheDtype": "--kv-dtype",
        "spec.kvTier.mode": "--mode",
        "spec.kvTier.hostPool.size": "--host-pool",
        "spec.resources.gpus": "--gpus",
        "spec.resources": "--gpus",
        "spec.resources.memory": "--pod-memory",
        "spec.resources.gpuMemoryUtilizationPercent": "--utilization",
        "spec.parallelism.tensor": "--tensor",
        "spec.parallelism.data": "--data",
        "spec.engine.version": "--engine-version",
    }
)
"""The option that sets a field of the spec, for whoever wrote no YAML."""


@dataclass(frozen=True)
class Options:
    """What was said on the command line; None where nothing was."""

    model: str | None = None
    weights: str | None = None
    context: str | None = None
    typical: str | None = None
    concurrency: int | None = None
    batched_tokens: int | None = None
    kv_dtype: str | None = None
    mode: str | None = None
    host_pool: str | None = None
    gpus: int | None = None
    pod_memory: str | None = None
    utilization: int | None = None
    tensor: int | None = None
    data: int | None = None
    engine_version: str | None = None
    gpu: str | None = None
    node_gpus: int | None = None
    host_memory: str | None = None
    no_hub: bool = False


@dataclass(frozen=True)
class Question:
    """A sound question: it has been judged as the API server and the operator judge a spec."""

    spec: HiSparseInferenceSpec
    model: ModelFacts
    target: Target
    nodes: tuple[NodeClass, ...]
    served_name: str


def question_of(manifest: Manifest | None, options: Options) -> Question:
    """Judge what is asked. Raises BadInputError with every fault, NotFoundOutError where a fact cannot be had."""
    if manifest is None and options.model is None:
        raise bad("--model", "is needed and not set; name a model, a config.json or, with -f, a manifest")
    problems: list[Problem] = []
    wishes = _Wishes(options, problems)
    local, model_block = wishes.model()
    raw = wishes.on(manifest.spec if manifest else {}, model_block)
    machine = wishes.machine()
    if problems:
        raise BadInputError(problems)
    try:
        spec = parse_spec(raw, metadata=manifest.metadata if manifest else None)
        nodes = _node_classes(spec, machine)
        model = _facts(spec, options, local)
    except SpecError as error:
        raise _with_option_names(error, manifest) from None
    target = target_of(spec)
    if faults := accept(model, target):
        raise _joined([_with_option_names(fault, manifest) for fault in faults])
    return Question(spec, model, target, nodes, served_name(spec.model))


# --- options as fields -----------------------------------------------------------------------------------------

_T = TypeVar("_T")


@dataclass(frozen=True)
class _Machine:
    """What the options say about the hardware; gpu is None where they name none."""

    gpu: tuple[Gpu, str] | None
    node_gpus: int
    host_memory_bytes: int | None


class _Wishes:
    """The options, read one by one: every fault is collected, so that one run tells them all."""

    def __init__(self, options: Options, problems: list[Problem]) -> None:
        self._options = options
        self._problems = problems

    def _tried(self, read: Callable[[], _T]) -> _T | None:
        try:
            return read()
        except BadInputError as error:
            self._problems.extend(error.problems)
            return None

    def _parsed(self, option: str, text: str | None, parse: Callable[[str], int]) -> int | None:
        try:
            return None if text is None else parse(text)
        except UnitError as error:
            self._problems.append(Problem(option, str(error)))
            return None

    def model(self) -> tuple[LocalModel | None, dict[str, Any] | None]:
        """The file behind --model, if it is one, and the `model` block that means it; None where nothing was said."""
        name = self._options.model

        def read() -> tuple[LocalModel | None, dict[str, Any] | None]:
            local = local_model(name)
            if local is not None:
                return local, local.as_source()
            return None, None if name is None else named_source(name)

        return self._tried(read) or (None, None)

    def on(self, spec: Mapping[str, Any], model: Mapping[str, Any] | None) -> dict[str, Any]:
        """The spec with what the options say in place of what it said."""
        options = self._options
        wished: dict[tuple[str, ...], Any] = {
            ("context", "maxTokens"): self._parsed("--context", options.context, parse_tokens),
            ("context", "typicalTokens"): self._parsed("--typical", options.typical, parse_tokens),
            ("context", "maxConcurrentRequests"): options.concurrency,
            ("context", "maxBatchedTokens"): options.batched_tokens,
            ("context", "kvCacheDtype"): _in_case(options.kv_dtype, KvCacheDtype),
            ("kvTier", "mode"): _in_case(options.mode, TierMode),
            # either form of a pool replaces the other
            ("kvTier", "hostPool"): {"size": options.host_pool} if options.host_pool is not None else None,
            ("resources", "gpus"): options.gpus,
            ("resources", "memory"): options.pod_memory,
            ("resources", "gpuMemoryUtilizationPercent"): options.utilization,
            ("parallelism", "tensor"): options.tensor,
            ("parallelism", "data"): options.data,
            ("engine", "version"): options.engine_version,
            ("model", "facts", "weights"): options.weights,
        }
        raw = copy.deepcopy(dict(spec))
        if model is not None:
            raw["model"] = dict(model)
        for path, value in wished.items():
            if value is not None:
                _put(raw, path, value)
        return raw

    def machine(self) -> _Machine:
        """The hardware."""
        options = self._options
        gpus = DEFAULT_NODE_GPUS if options.node_gpus is None else options.node_gpus
        if gpus < 1:
            self._problems.append(Problem("--node-gpus", f"{gpus} is below 1; set how many GPUs one node has"))
        memory = self._parsed("--host-memory", options.host_memory, parse_quantity)
        if memory is not None and memory < GIB:
            message = f'"{options.host_memory}" is below 1Gi; set the memory of one node, as in "2Ti"'
            self._problems.append(Problem("--host-memory", message))
        named = options.gpu
        gpu = None if named is None else self._tried(lambda: named_gpu(named))
        return _Machine(gpu, gpus, memory)


def _put(raw: dict[str, Any], path: tuple[str, ...], value: object) -> None:
    at = raw
    for step in path[:-1]:
        inner = at.get(step)
        if not isinstance(inner, dict):
            # what a manifest wrongly holds there is replaced: the option says what is meant
            inner = at[step] = {}
        at = inner
    at[path[-1]] = value


def _in_case(word: str | None, words: type[StrEnum]) -> str | None:
    """The word as the API spells it, for whoever types it in lower case; unknown words are judged with the spec."""
    if word is None:
        return None
    return next((known.value for known in words if known.value.lower() == word.lower()), word)


def _with_option_names(error: SpecError, manifest: Manifest | None) -> BadInputError:
    """The same words as everywhere, and the option that mends it for whoever wrote no YAML."""
    problems = BadInputError.of(error).problems
    if manifest is not None:
        return BadInputError(problems)
    return BadInputError(
        Problem(one.field, f"{one.message} [{OPTION_OF[one.field]}]" if one.field in OPTION_OF else one.message)
        for one in problems
    )


def _joined(errors: Iterable[BadInputError]) -> BadInputError:
    return BadInputError(problem for error in errors for problem in error.problems)


# --- facts and nodes -------------------------------------------------------------------------------------------------


def _facts(spec: HiSparseInferenceSpec, options: Options, local: LocalModel | None) -> ModelFacts:
    source = spec.model.hugging_face
    if needs_hub(spec.model) and source is not None:
        files = hub.hub_files(
            source.repo,
            source.revision,
            off=hub.why_off(no_hub=options.no_hub),
            near=catalogue.suggest(source.repo),
        )
        return facts_for(spec.model, hub_config=files.config, hub_index=files.index)
    return facts_for(spec.model, hub_index=local.index if local else None)


def _node_classes(spec: HiSparseInferenceSpec, machine: _Machine) -> tuple[NodeClass, ...]:
    gpus, memory = machine.node_gpus, machine.host_memory_bytes
    products = spec.resources.gpu_products or []
    if machine.gpu is None and products:
        return tuple(NodeClass(_gpu_of(product), gpus, memory, product) for product in products)
    gpu, product = machine.gpu or named_gpu(DEFAULT_GPU)
    return (NodeClass(gpu, gpus, memory, product),)


def named_gpu(name: str, option: str = "--gpu") -> tuple[Gpu, str]:
    """The GPU that a person names, by its short name or its nvidia.com/gpu.product, and that product."""
    gpu = hardware.gpu_of_product(name)
    if gpu is not None:
        return gpu, name
    gpu = hardware.gpu_named(name)
    if gpu is not None:
        exact = next((product for product in gpu.products if product.lower().endswith(name.lower())), gpu.products[0])
        return gpu, exact
    known = [one.name for one in hardware.GPUS]
    close = difflib.get_close_matches(name.lower(), known, n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    raise bad(option, f'"{name}" is not a GPU that is known here{hint} (known: {", ".join(known)})')


def _gpu_of(product: str) -> Gpu:
    gpu = hardware.gpu_of_product(product)
    if gpu is None:
        known = ", ".join(name for one in hardware.GPUS for name in one.products)
        message = f'nothing is known of "{product}"; name a GPU with --gpu (known products: {known})'
        raise NotFoundOutError([Problem("spec.resources.gpuProducts", message)])
    return gpu
