"""What is asked: a manifest, options, or options on top of a manifest, made into what the planner takes.

Options become fields of a spec and are judged as one, so that the command, the API server and the operator give the
same answer to the same wish.
"""

from __future__ import annotations

import copy
import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, TypeVar

from hisparse import hardware
from hisparse.acceptance import accept
from hisparse.errors import SpecError, UnitError
from hisparse.hardware import Gpu, NodeClass
from hisparse.model import ModelFacts, facts_for, needs_hub, served_name
from hisparse.plan import Target
from hisparse.rules import at_path
from hisparse.spec import HiSparseInferenceSpec, KvCacheDtype, PoolSharing, RopeScalingType, TierMode, parse_spec
from hisparse.target import target_of
from hisparse.units import GIB, MIB, format_bytes, parse_quantity, shortened
from hisparse_toolkit import hub
from hisparse_toolkit.counts import bounded, number, tokens
from hisparse_toolkit.manifest import Manifest
from hisparse_toolkit.model_source import LocalModel, local_model, named_source, near_model
from hisparse_toolkit.option_words import OPTION_OF, in_options
from hisparse_toolkit.problems import BadInputError, NotFoundOutError, Problem, bad

DEFAULT_GPU: Final = "h200"
DEFAULT_NODE_GPUS: Final = 8

_NEEDED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "--model": "name a model or a config.json, as in --model GLM-5.3-FP8, or a manifest with -f",
        "--context": "give the longest request in tokens, prompt and answer together, as in --context 128K",
        "--gpus": "give the GPUs of one replica, as in --gpus 8",
        "--rope-factor": "say by how much positions are stretched, as in --rope-factor 4",
    }
)
_OF_A_LOG: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?) ?([MG])iB")
_NOT_SET: Final = "is needed and not set"
_SET_IN_YAML: Final = (
    "; set it here",
    "; put the model's whole config.json here",
    "; put the model's config.json here",
)
_SIZE_IN_YAML: Final = "; set it here, e.g. 141Gi, or set facts.parameterCount"


@dataclass(frozen=True)
class Options:
    """What was said on the command line; None where nothing was."""

    model: str | None = None
    weights: str | None = None
    context: str | None = None
    typical: str | None = None
    concurrency: str | None = None
    batched_tokens: str | None = None
    kv_dtype: str | None = None
    rope_type: str | None = None
    rope_factor: str | None = None
    rope_original: str | None = None
    mode: str | None = None
    host_pool: str | None = None
    sharing: str | None = None
    gpus: str | None = None
    pod_memory: str | None = None
    utilization: str | None = None
    tensor: str | None = None
    data: str | None = None
    pipeline: str | None = None
    expert: bool | None = None
    engine_version: str | None = None
    gpu: str | None = None
    node_gpus: str | None = None
    host_memory: str | None = None
    mtp_tokens: str | None = None
    decode_context: str | None = None
    kv_memory: str | None = None
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
    problems: list[Problem] = []
    wishes = _Wishes(options, problems)
    local, model_block = wishes.model()
    raw = wishes.on(manifest.spec if manifest else {}, model_block)
    machine = wishes.machine()
    beyond = wishes.beyond_the_spec()
    try:
        spec = parse_spec(raw, metadata=manifest.metadata if manifest else None)
    except SpecError as error:
        told = {problem.field for problem in problems}
        # what an option failed to say is missing from the spec, and has been told
        problems += [
            one
            for one in _with_option_names(error, manifest, raw, local)
            if told.isdisjoint((one.field, *OPTION_OF.get(one.field, "").split(", ")))
        ]
        raise BadInputError(problems) from None
    if problems:
        raise BadInputError(problems)
    try:
        nodes = _node_classes(spec, machine)
        model = _facts(spec, options, local)
    except SpecError as error:
        raise BadInputError(_with_option_names(error, manifest, raw, local)) from None
    target = beyond(target_of(spec))
    if target.kv_bytes is not None:
        _judge_kv_bytes(target.kv_bytes, nodes)
    if faults := accept(model, target):
        raise BadInputError(one for fault in faults for one in _with_option_names(fault, manifest, raw, local))
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

    def _number(self, option: str, text: str | None) -> int | None:
        return None if text is None else self._tried(lambda: number(option, text))

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
            ("context", "maxTokens"): self._parsed("--context", options.context, tokens),
            ("context", "typicalTokens"): self._parsed("--typical", options.typical, tokens),
            ("context", "maxConcurrentRequests"): self._number("--concurrency", options.concurrency),
            ("context", "maxBatchedTokens"): self._number("--batched-tokens", options.batched_tokens),
            ("context", "kvCacheDtype"): _in_case(options.kv_dtype, KvCacheDtype),
            ("context", "ropeScaling", "type"): _in_case(self._rope_type(spec), RopeScalingType),
            ("context", "ropeScaling", "factor"): options.rope_factor,
            ("context", "ropeScaling", "originalMaxTokens"): self._parsed(
                "--rope-original", options.rope_original, tokens
            ),
            ("kvTier", "mode"): _in_case(options.mode, TierMode),
            ("kvTier", "sharing"): _in_case(options.sharing, PoolSharing),
            # either form of a pool replaces the other
            ("kvTier", "hostPool"): {"size": options.host_pool} if options.host_pool is not None else None,
            ("resources", "gpus"): self._number("--gpus", options.gpus),
            ("resources", "memory"): options.pod_memory,
            ("resources", "gpuMemoryUtilizationPercent"): self._number("--utilization", options.utilization),
            ("parallelism", "tensor"): self._number("--tensor", options.tensor),
            ("parallelism", "data"): self._number("--data", options.data),
            ("parallelism", "pipeline"): self._number("--pipeline", options.pipeline),
            ("parallelism", "expert"): options.expert,
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

    def _rope_type(self, spec: Mapping[str, Any]) -> str | None:
        """The type that was said; Yarn where only the rest was, as vLLM's models have it."""
        options = self._options
        if options.rope_type is not None or (options.rope_factor is None and options.rope_original is None):
            return options.rope_type
        return None if at_path(spec, "context.ropeScaling.type") else RopeScalingType.YARN.value

    def beyond_the_spec(self) -> Callable[[Target], Target]:
        """What a plan may be asked and an object cannot say: the change of the target."""
        options = self._options
        draft = self._bounded("--mtp-tokens", options.mtp_tokens) or 0
        context = self._bounded("--decode-context", options.decode_context) or 1
        known = self._parsed("--kv-memory", options.kv_memory, _log_size)
        return lambda target: replace(target, draft_tokens=draft, decode_context=context, kv_bytes=known)

    def _bounded(self, option: str, text: str | None) -> int | None:
        return None if text is None else self._tried(lambda: bounded(option, text))

    def machine(self) -> _Machine:
        """The hardware."""
        options = self._options
        typed = options.node_gpus
        gpus = DEFAULT_NODE_GPUS if typed is None else self._tried(lambda: bounded("--node-gpus", typed))
        memory = self._parsed("--host-memory", options.host_memory, parse_quantity)
        if memory is not None and memory < GIB:
            message = f'"{options.host_memory}" is below 1Gi; set the memory of one node, as in "2Ti"'
            self._problems.append(Problem("--host-memory", message))
        named = options.gpu
        gpu = None if named is None else self._tried(lambda: named_gpu(named))
        return _Machine(gpu, gpus or DEFAULT_NODE_GPUS, memory)


def _log_size(text: str) -> int:
    """A size as a log prints it, "55.3 GiB", or as a quantity. Raises UnitError, also where the unit is missing."""
    printed = _OF_A_LOG.fullmatch(text.strip())
    value = parse_quantity(f"{printed[1]}{printed[2]}i" if printed else text)
    if value < MIB:
        raise UnitError(f'"{shortened(text)}" is less than 1Mi, and a number without a unit counts bytes; add the unit')
    return value


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


def _with_option_names(
    error: SpecError, manifest: Manifest | None, raw: Mapping[str, Any], local: LocalModel | None
) -> tuple[Problem, ...]:
    """The same words as everywhere, and the option that mends it for whoever wrote no YAML."""
    return tuple(_with_option(one, manifest, raw, local) for one in BadInputError.of(error).problems)


def _with_option(one: Problem, manifest: Manifest | None, raw: Mapping[str, Any], local: LocalModel | None) -> Problem:
    if one.field == "spec.parallelism":
        one = Problem(one.field, f"{one.message}{_tensor_for(raw)}")
    if manifest is None:
        one = Problem(one.field, in_options(_without_facts(one.message, local)))
    option = OPTION_OF.get(one.field)
    if manifest is not None or option is None:
        return one
    if option in _NEEDED and one.message.startswith(_NOT_SET):
        return Problem(option, f"{_NOT_SET}; {_NEEDED[option]}")
    return Problem(one.field, f"{one.message} [{option}]")


def _without_facts(message: str, local: LocalModel | None) -> str:
    """A fact of the model is set where the model was named: in its file, which a manifest need not be written for."""
    place = f"add it to {local.path}" if local else "give the model's whole config.json as --model FILE"
    message = message.replace(_SIZE_IN_YAML, "; say it, e.g. 141Gi")
    for words in _SET_IN_YAML:
        message = message.replace(words, f"; {place}")
    return message


def _tensor_for(raw: Mapping[str, Any]) -> str:
    """The tensor parallel size that is meant where only the other ways were said: the API's default is all GPUs."""
    gpus = at_path(raw, "resources.gpus")
    tensor, data, pipeline = (at_path(raw, f"parallelism.{way}") for way in ("tensor", "data", "pipeline"))
    ways = int(str(data or 1)) * int(str(pipeline or 1))
    if tensor is not None or not isinstance(gpus, int):
        return ""
    said = " ".join(f"--{name} {way}" for name, way in (("data", data), ("pipeline", pipeline)) if way)
    if ways < 1 or gpus % ways:
        return f"; {said} needs a multiple of {ways} GPUs"
    return f"; with {said} give --tensor {gpus // ways} (unless said it is all {gpus} GPUs)"


# --- facts and nodes -------------------------------------------------------------------------------------------------


def _facts(spec: HiSparseInferenceSpec, options: Options, local: LocalModel | None) -> ModelFacts:
    source = spec.model.hugging_face
    if needs_hub(spec.model) and source is not None:
        files = hub.hub_files(
            source.repo,
            source.revision,
            off=hub.why_off(no_hub=options.no_hub),
            near=near_model(source.repo),
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
    if "," in name and option == "--gpu":
        raise bad(option, f'"{name}" is more than one GPU; name one, or compare them with hisparse compare --gpu-kinds')
    known = [one.name for one in hardware.GPUS]
    close = difflib.get_close_matches(name.lower(), known, n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    raise bad(option, f'"{name}" is not a GPU that is known here{hint} (known: {", ".join(known)})')


def _judge_kv_bytes(known: int, nodes: tuple[NodeClass, ...]) -> None:
    gpu = min((node.gpu for node in nodes), key=lambda one: one.memory_bytes)
    if known > gpu.memory_bytes:
        raise bad(
            "--kv-memory",
            f"{format_bytes(known)} is more than all the {hardware.format_memory(gpu)} of one {gpu.name}; write what "
            "the log of one GPU says",
        )


def _gpu_of(product: str) -> Gpu:
    gpu = hardware.gpu_of_product(product)
    if gpu is None:
        known = ", ".join(name for one in hardware.GPUS for name in one.products)
        message = f'nothing is known of "{product}"; name a GPU with --gpu (known products: {known})'
        raise NotFoundOutError([Problem("spec.resources.gpuProducts", message)])
    return gpu
