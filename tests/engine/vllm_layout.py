"""vLLM's own answers about KV caches, as JSON: runs with vLLM's Python and packages, never with ours.

    PYTHONPATH=FOLDERS python vllm_layout.py QUESTIONS.json ANSWERS.json

No model is built and no GPU is used. Layers are vLLM's layer classes without weights, which say what cache they want;
from there on (block sizes, groups, bytes per block, blocks, lengths, concurrency) everything is the planning code that
the engine's core process runs. test_layout_against_vllm.py writes the questions and says what is compared.
"""

# ruff: noqa: E402 - the platform has to be set before anything else of vLLM is imported
# mypy: ignore-errors
# (torch and vLLM are not in the project's environment)

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import json
import math
import re
import sys
import time
import traceback
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import vllm.platforms
from transformers import CONFIG_MAPPING, AutoConfig
from vllm.platforms.cpu import CpuPlatform
from vllm.platforms.interface import DeviceCapability

Question = Mapping[str, Any]


class _Platform(CpuPlatform):
    """The CPU platform, with the compute capability of the GPU that a question is about."""

    capability = (9, 0)
    cuda = False

    @classmethod
    def get_device_capability(cls, device_id: int = 0) -> DeviceCapability:  # noqa: ARG003
        return DeviceCapability(*cls.capability)

    @classmethod
    def get_cuda_runtime_major(cls) -> int:
        return 13

    def is_cuda(self) -> bool:
        return self.cuda

    def is_cuda_alike(self) -> bool:
        return self.cuda


PLATFORM = _Platform()
vllm.platforms._current_platform = PLATFORM

from vllm.v1.attention.backends import fa_utils

# kernels that a CPU build lacks; nothing of them is called
fa_utils.__dict__["__getattr__"] = lambda _name: None

from vllm.config import VllmConfig
from vllm.distributed.utils import get_pp_indices
from vllm.model_executor.layers.attention.attention import Attention
from vllm.model_executor.layers.attention.chunked_local_attention import ChunkedLocalAttention
from vllm.model_executor.layers.attention.mla_attention import MLAAttention, _canonicalize_sparse_mla_kv_cache_dtype
from vllm.model_executor.layers.mamba.gdn import qwen_gdn_linear_attn as gdn
from vllm.model_executor.layers.mamba.mamba_mixer import MambaMixer
from vllm.model_executor.layers.mamba.mamba_mixer2 import MambaMixer2
from vllm.model_executor.layers.mamba.mamba_utils import MambaStateShapeCalculator
from vllm.model_executor.layers.mamba.short_conv import ShortConv
from vllm.model_executor.layers.quantization.turboquant.config import TurboQuantConfig
from vllm.model_executor.models import ModelRegistry
from vllm.model_executor.models.config import MODELS_CONFIG_MAP, HybridAttentionMambaModelConfig
from vllm.model_executor.models.deepseek_v2 import DeepseekV32IndexerCache
from vllm.platforms.interface import Platform
from vllm.utils.torch_utils import kv_cache_dtype_str_to_dtype
from vllm.v1 import kv_cache_interface as interface
from vllm.v1.attention.backends.flash_attn import FlashAttentionBackend
from vllm.v1.attention.backends.triton_attn import TritonAttentionBackend
from vllm.v1.attention.backends.turboquant_attn import TurboQuantAttentionBackend
from vllm.v1.attention.backends.utils import get_supported_kv_cache_layouts, resolve_kv_cache_layout
from vllm.v1.core import kv_cache_utils
from vllm.v1.hisparse import layout as hisparse
from vllm.v1.worker.gpu.attn_utils import get_kv_cache_spec

try:
    from vllm.v1.core import kv_cache_planning as planning
    from vllm.v1.core.kv_cache_config_builder import get_kv_cache_config_builder
except ImportError:  # before 0.33 all of it was in one module, without builders
    planning = kv_cache_utils
    get_kv_cache_config_builder = None


class _Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stands in for packages that only their kernels or image code need."""

    names = ("flashinfer", "torchvision")

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:  # noqa: ARG002
        if name.partition(".")[0] in self.names:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = types.ModuleType(spec.name)
        module.__getattr__ = lambda name: mock.MagicMock(name=name)
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing to run."""


sys.meta_path.append(_Absent())


class _Vllm(types.SimpleNamespace):
    """A VllmConfig as far as planning reads it; what the real class works out is worked out by the real class."""

    max_concurrent_batches = VllmConfig.max_concurrent_batches
    max_in_flight_tokens = VllmConfig.max_in_flight_tokens
    num_speculative_tokens = VllmConfig.num_speculative_tokens
    num_prefill_lookahead_tokens = VllmConfig.num_prefill_lookahead_tokens


class _Model(types.SimpleNamespace):
    """A ModelConfig as far as planning reads it."""

    def get_num_kv_heads(self, parallel: Any) -> int:
        return 1 if self.use_mla else max(1, self.total_kv_heads // parallel.tensor_parallel_size)

    def get_num_attention_heads(self, parallel: Any) -> int:
        return max(1, self.hf_text_config.num_attention_heads // parallel.tensor_parallel_size)

    def get_head_size(self) -> int:
        return self.head_size


class _Speculative(types.SimpleNamespace):
    """One MTP module that drafts several tokens."""

    method = "mtp"
    parallel_drafting = False

    def use_eagle(self) -> bool:
        return True

    def use_multi_module_mtp(self) -> bool:
        return False

    def use_eagle_block_drop(self) -> bool:
        return True


@contextlib.contextmanager
def _as_cuda() -> Iterator[None]:
    PLATFORM.__class__.cuda = True
    try:
        yield
    finally:
        PLATFORM.__class__.cuda = False


# --- the engine's configuration for one question ---------------------------------------------------------------------


def _hugging_face(config: Question) -> tuple[Any, Any]:
    """(whole config, that of the language model), with the defaults of the class that reads it."""
    rest = {key: value for key, value in config.items() if key != "model_type"}
    if config.get("model_type") in CONFIG_MAPPING:
        whole = AutoConfig.for_model(config["model_type"], **rest)
        return whole, whole.get_text_config()
    return types.SimpleNamespace(**rest), types.SimpleNamespace(**(config.get("text_config") or rest))


_OWN_RULES = frozenset(
    name for name in MODELS_CONFIG_MAP if name.startswith(("DeepseekV32", "Glm", "NemotronH", "Qwen3_5"))
)
"""Architectures with rules of their own for the dtype of their cache or state; the other rules choose kernels."""


def _vllm_config(question: Question) -> _Vllm:
    PLATFORM.__class__.capability = tuple(question["capability"])
    config = question["config"]
    hf, hf_text = _hugging_face(config)
    caches = [cache for layer in question["layers"] for cache in layer]
    attending = next((one for one in caches if one["kind"] in ("FullAttention", "SlidingWindow")), None)
    latent = next((one for one in caches if one["kind"] == "Latent"), None)
    architecture = config.get("architectures", [None])[0]
    has_states = any(one["kind"] == "RecurrentState" for one in caches)
    full = next((one for one in caches if one["kind"] == "FullAttention"), attending)
    model = _Model(
        dtype=torch.bfloat16,
        hf_config=hf,
        hf_text_config=hf_text,
        architecture=architecture,
        architectures=[architecture],
        model="question",
        max_model_len=question["lengths"][0],
        original_max_model_len=question["lengths"][0],
        use_mla=latent is not None,
        is_hybrid=has_states,
        supports_kv_cache_grouping=False,
        total_kv_heads=full["kv_heads"] if full else 1,
        head_size=latent["rank"] + latent["rope_dim"] if latent else (full["key_dim"] if full else 0),
    )
    cache = types.SimpleNamespace(
        # 16 bits are asked for by name: "auto" means fp8 for some models on some GPUs
        cache_dtype=question["dtype"],
        block_size=question["block_size"] or 16,
        user_specified_block_size=question["block_size"] is not None,
        enable_prefix_caching=question["caching"],
        mamba_cache_mode="none",
        mamba_block_size=None,
        mamba_page_size_padded=None,
        mamba_cache_dtype="auto",
        mamba_ssm_cache_dtype="auto",
        use_replayssm=False,
        use_kda_recoverssm=False,
        prefix_match_unit=None,
        skip_page_size_padded=None,
        kv_cache_dtype_skip_layers=[],
        kv_cache_layout=None,
        num_gpu_blocks_override=None,
        prefix_cache_retention_interval=None,
    )
    cache.get_resolved_kv_cache_layout = lambda: interface.KVCacheLayout[cache.kv_cache_layout]
    parallel = types.SimpleNamespace(
        tensor_parallel_size=question["tensor"],
        pipeline_parallel_size=question["pipeline"],
        decode_context_parallel_size=question["context"],
        prefill_context_parallel_size=1,
        world_size=question["tensor"] * question["pipeline"],
        distributed_executor_backend="mp",
        nnodes_within_dp=1,
        set_dcp_defaults=lambda **_: None,
    )
    scheduler = types.SimpleNamespace(
        max_num_batched_tokens=question["batched"],
        max_num_seqs=256,
        async_scheduling=True,
        enable_chunked_prefill=True,
        disable_hybrid_kv_cache_manager=False,
    )
    speculative = _Speculative(num_speculative_tokens=question["drafted"]) if question["drafted"] else None
    vllm_config = _Vllm(
        model_config=model,
        cache_config=cache,
        parallel_config=parallel,
        scheduler_config=scheduler,
        speculative_config=speculative,
        diffusion_config=None,
        attention_config=types.SimpleNamespace(
            hisparse_config=_hisparse_config(question),
            flash_attn_version=None,
            backend=None,
            use_trtllm_attention=None,
        ),
        compilation_config=types.SimpleNamespace(static_forward_context={}),
        device_config=types.SimpleNamespace(device_type="cuda"),
        kv_transfer_config=None,
        additional_config={},
        use_v2_model_runner=True,
    )
    if has_states:
        HybridAttentionMambaModelConfig.verify_and_update_config(vllm_config)
    if architecture in _OWN_RULES:
        MODELS_CONFIG_MAP[architecture].verify_and_update_config(vllm_config)
    if cache.cache_dtype.startswith("turboquant_"):
        cache.kv_cache_dtype_skip_layers = sorted(TurboQuantConfig.get_boundary_skip_layers(model))
    if vllm_config.attention_config.hisparse_config is not None:
        # what the connector asks for
        cache.kv_cache_layout = "BLHNC"
    return vllm_config


def _hisparse_config(question: Question) -> types.SimpleNamespace | None:
    if question["ask"] != "hisparse_pools":
        return None
    return types.SimpleNamespace(device_buffer_size=question["device_buffer"], eager_host_mirror=True)


# --- layers ------------------------------------------------------------------------------------------------------------


def _bare(cls: type, **attributes: Any) -> Any:
    """A layer of that class without its weights: only what it needs to describe its cache."""
    layer = object.__new__(cls)
    if isinstance(layer, torch.nn.Module):
        torch.nn.Module.__init__(layer)
    for name, value in attributes.items():
        object.__setattr__(layer, name, value)
    return layer


def _dense_backend(dtype: str, major: int) -> type:
    if dtype.startswith("turboquant_"):
        return TurboQuantAttentionBackend
    if dtype.endswith("_per_token_head"):
        return TritonAttentionBackend
    return (
        _module("vllm.v1.attention.backends.flashinfer", "FlashInferBackend") if major == 10 else FlashAttentionBackend
    )


def _module(path: str, name: str) -> Any:
    return getattr(importlib.import_module(path), name)


def _mla_backend(question: Question, rank_and_rope: int, *, sparse: bool) -> type:
    """What the CUDA platform's order of MLA backends comes to on this GPU."""
    folder, major = "vllm.v1.attention.backends.mla", question["capability"][0]
    if sparse:
        fp8 = question["dtype"] == "fp8"
        if major == 9 and rank_and_rope == 512:
            return _module(f"{folder}.flashinfer_mla_sparse_sm90", "FlashInferMLASparseSM90Backend")
        if major == 10 and fp8:
            return _module(f"{folder}.flashinfer_mla_sparse", "FlashInferMLASparseTRTLLMBackend")
        if major == 12:
            return _module(f"{folder}.flashinfer_mla_sparse", "FlashInferMLASparseSM120Backend")
        return _module(f"{folder}.flashmla_sparse", "FlashMLASparseBackend")
    if major == 9:
        fp8 = question["dtype"] == "fp8"
        return (
            _module(f"{folder}.flashmla", "FlashMLABackend")
            if fp8
            else _module(f"{folder}.flashattn_mla", "FlashAttnMLABackend")
        )
    if major == 10:
        return _module(f"{folder}.flashinfer_mla", "FlashInferMLABackend")
    return _module(f"{folder}.triton_mla", "TritonMLABackend")


@dataclass(frozen=True)
class _Maker:
    """Makes the layers of one question."""

    question: Question
    vllm_config: _Vllm

    def place(self, layers: Sequence[Sequence[Question]], first: int, *, draft: bool) -> list[list[str]]:
        """Register the layers; the names of each layer's caches."""
        context = self.vllm_config.compilation_config.static_forward_context
        names = []
        for index, caches in enumerate(layers, first):
            names.append([])
            sparse = any(cache["kind"] == "IndexerKeys" for cache in caches)
            for cache in caches:
                for suffix, layer in self._layers(cache, index, sparse=sparse, draft=draft):
                    name = f"model.layers.{index}.{suffix}"
                    layer.is_draft_layer = draft
                    context[name] = layer
                    names[-1].append(name)
        return names

    def _layers(self, cache: Question, index: int, *, sparse: bool, draft: bool) -> Iterator[tuple[str, Any]]:
        kind = cache["kind"]
        if kind == "RecurrentState":
            yield "mixer", self._state()
        elif kind == "IndexerKeys":
            yield from self._indexer(cache)
        elif kind == "Latent":
            yield "self_attn.attn", self._latent(cache, leader=sparse)
        else:
            yield "self_attn.attn", self._attention(cache, index, draft=draft)

    def _attention(self, cache: Question, index: int, *, draft: bool) -> Any:
        config = self.vllm_config.cache_config
        dtype = config.cache_dtype
        # as the layer's constructor does
        if not draft and str(index) in config.kv_cache_dtype_skip_layers:
            dtype = "auto"
        cls = ChunkedLocalAttention if cache["kind"] == "ChunkedAttention" else Attention
        return _bare(
            cls,
            attn_type="decoder",
            kv_cache_dtype=dtype,
            kv_cache_torch_dtype=kv_cache_dtype_str_to_dtype(dtype, self.vllm_config.model_config),
            num_kv_heads=max(1, cache["kv_heads"] // self.question["tensor"]),
            head_size=cache["key_dim"],
            head_size_v=cache["value_dim"],
            sliding_window=cache.get("window"),
            attention_chunk_size=cache.get("chunk"),
            attn_backend=_dense_backend(dtype, self.question["capability"][0]),
            kv_sharing_target_layer_name=None,
        )

    def _latent(self, cache: Question, *, leader: bool) -> Any:
        config = self.vllm_config.cache_config
        backend = _mla_backend(self.question, cache["rank"] + cache["rope_dim"], sparse=self.question["sparse"])
        config.cache_dtype = _canonicalize_sparse_mla_kv_cache_dtype(backend, config.cache_dtype)
        return _bare(
            MLAAttention,
            kv_cache_dtype=config.cache_dtype,
            head_size=cache["rank"] + cache["rope_dim"],
            kv_lora_rank=cache["rank"],
            sliding_window=None,
            attn_backend=backend,
            indexer=object() if leader else None,
            topk_buffer_width=None,
            non_causal_multi_token_decode=False,
            kv_sharing_target_layer_name=None,
        )

    def _indexer(self, cache: Question) -> Iterator[tuple[str, Any]]:
        # fp8 keys with a float32 scale per 128 of them, as Indexer.__init__ sizes its cache
        width = cache["head_dim"] + cache["head_dim"] // 128 * 4
        common = {"cache_config": self.vllm_config.cache_config}
        if cache["pool"] == 1:
            yield (
                "self_attn.indexer.k_cache",
                _bare(DeepseekV32IndexerCache, head_dim=width, dtype=torch.uint8, **common),
            )
            return
        common["_index_kpool"] = cache["pool"]
        folder = "vllm.models.glm5next.common.attention"
        keys, tail = _module(folder, "Glm5NextIndexerCache"), _module(folder, "Glm5NextTailCache")
        yield "self_attn.indexer.k_cache", _bare(keys, head_dim=width, dtype=torch.uint8, **common)
        yield "self_attn.indexer.tail", _bare(tail, head_dim=cache["head_dim"], dtype=torch.bfloat16, **common)

    def _state(self) -> Any:
        """A recurrent layer of the class that the architecture has; its shapes are those that its model class gives."""
        shapes, dtypes = self.shapes_and_dtypes()
        architecture = self.vllm_config.model_config.architecture
        cls, attributes = _STATES[architecture](self.vllm_config)
        own = type(
            f"Bare{cls.__name__}",
            (cls,),
            {
                "get_state_shape": lambda _self: shapes,
                "get_state_dtype": lambda _self: dtypes,
            },
        )
        return _bare(own, vllm_config=self.vllm_config, **attributes)

    def shapes_and_dtypes(self) -> tuple[Any, Any]:
        model = model_class(self.vllm_config.model_config.architecture)
        return (
            model.get_mamba_state_shape_from_config(self.vllm_config),
            model.get_mamba_state_dtype_from_config(self.vllm_config),
        )


def model_class(architecture: str) -> Any:
    return ModelRegistry.models[architecture].load_model_cls()


def _gdn(vllm_config: _Vllm) -> tuple[type, dict[str, Any]]:
    with _as_cuda():
        _, backend = gdn._resolve_gdn_prefill_backend(vllm_config)
    aligned = backend == "flashinfer" and vllm_config.cache_config.mamba_cache_mode == "align"
    step = getattr(gdn, "FLASHINFER_GDN_CHECKPOINT_ALIGNMENT", None)
    return gdn.QwenGatedDeltaNetAttention, {"_checkpoint_alignment": step if aligned else None}


def _kimi_kda(vllm_config: _Vllm) -> tuple[type, dict[str, Any]]:
    module = importlib.import_module("vllm.models.kimi_k3.nvidia.kda")
    linear = vllm_config.model_config.hf_text_config.linear_attn_config
    dtype = vllm_config.model_config.dtype
    with _as_cuda():
        backend = module.resolve_kda_prefill_backend(
            "auto", linear["head_dim"], dtype, torch.float32, linear.get("gate_lower_bound")
        )
    return module.KimiK3DeltaAttention, {"kda_prefill_backend": backend}


def _glm_kda(vllm_config: _Vllm) -> tuple[type, dict[str, Any]]:
    module = importlib.import_module("vllm.models.glm5next.common.kda")
    text = vllm_config.model_config.hf_text_config
    with _as_cuda():
        backend = module._resolve_kda_prefill_backend(
            "auto", text.linear_head_dim, vllm_config.model_config.dtype, text.linear_lower_bound
        )
    return module.Glm5NextLinearAttention, {"kda_prefill_backend": backend}


_STATES: dict[str, Callable[[_Vllm], tuple[type, dict[str, Any]]]] = {
    **dict.fromkeys(
        (
            "Qwen3NextForCausalLM",
            "Qwen3_5ForCausalLM",
            "Qwen3_5ForConditionalGeneration",
            "Qwen3_5MoeForCausalLM",
            "Qwen3_5MoeForConditionalGeneration",
        ),
        _gdn,
    ),
    "OlmoHybridForCausalLM": lambda _config: (
        _module("vllm.model_executor.layers.mamba.gdn.olmo_gdn_linear_attn", "OlmoHybridGatedDeltaNetAttention"),
        {},
    ),
    **dict.fromkeys(
        ("NemotronHForCausalLM", "GraniteMoeHybridForCausalLM", "FalconH1ForCausalLM"),
        lambda _config: (MambaMixer2, {"use_replayssm": False}),
    ),
    "JambaForCausalLM": lambda _config: (MambaMixer, {}),
    **dict.fromkeys(("Lfm2ForCausalLM", "Lfm2MoeForCausalLM"), lambda _config: (ShortConv, {})),
    "KimiLinearForCausalLM": _kimi_kda,
    **dict.fromkeys(("Glm5NextForCausalLM", "Glm5NextForConditionalGeneration"), _glm_kda),
}


# --- answers -----------------------------------------------------------------------------------------------------------


def _build(question: Question) -> tuple[_Vllm, list[dict[str, Any]]]:
    """The engine's configuration and the cache specs of each pipeline rank."""
    vllm_config = _vllm_config(question)
    maker = _Maker(question, vllm_config)
    names = maker.place(question["layers"], 0, draft=False)
    drafts = maker.place(question["drafts"], len(names), draft=True)
    with mock.patch.object(ModelRegistry, "resolve_model_cls", lambda name, **_: (model_class(name), name)):
        Platform.update_block_size_for_backend(vllm_config)
    context = vllm_config.compilation_config.static_forward_context
    ranks = question["pipeline"]
    workers = []
    for rank in range(ranks):
        first, last = get_pp_indices(len(names), rank, ranks)
        here = [name for layer in names[first:last] for name in layer]
        if rank == ranks - 1:
            here += [name for layer in drafts for name in layer]
        vllm_config.compilation_config.static_forward_context = {name: context[name] for name in here}
        workers.append(get_kv_cache_spec(vllm_config))
    vllm_config.compilation_config.static_forward_context = context
    backends = {layer.get_attn_backend(): None for layer in context.values()}
    layouts = [[layout.name for layout in get_supported_kv_cache_layouts(backends)]] * ranks
    specs = [spec for worker in workers for spec in worker.values()]
    resolve_kv_cache_layout(vllm_config, layouts, specs)
    return vllm_config, workers


def _plan(vllm_config: _Vllm, workers: list[dict[str, Any]], budget: int) -> list[Any]:
    """The cache configuration of each worker. Raises ValueError where the engine would not start."""
    memory = [budget] * len(workers)
    specs = [dict(worker) for worker in workers]
    if planning is kv_cache_utils:
        return planning.get_kv_cache_configs(vllm_config, specs, memory)
    groups = planning.get_global_kv_cache_groups(vllm_config, specs)
    return planning.get_kv_cache_configs(vllm_config, specs, memory, groups)


def _builder(vllm_config: _Vllm) -> list[Any]:
    return [] if get_kv_cache_config_builder is None else [get_kv_cache_config_builder(vllm_config)]


def _pool_bytes(vllm_config: _Vllm, groups: list[Any]) -> int:
    return planning._pool_bytes_per_block(vllm_config, groups)


def _groups(vllm_config: _Vllm, workers: list[dict[str, Any]]) -> list[list[Any]]:
    """Each worker's groups, from a plan whose memory nothing can exceed."""
    return [config.kv_cache_groups for config in _plan(vllm_config, workers, 1 << 60)]


def _group(group: Any) -> dict[str, Any]:
    spec = group.kv_cache_spec
    own = list(interface.iter_layer_specs(spec))
    size = (
        spec.page_size_bytes
        if isinstance(spec, interface.UniformTypeKVCacheSpecs)
        else (spec.page_size_bytes * len(group.layer_names))
    )
    return {
        "kind": type(own[0]).__name__,
        "layers": len(group.layer_names),
        "block_size": spec.block_size,
        "bytes": size if group.layer_names else 0,
    }


def plain(question: Question) -> dict[str, Any]:
    """A cache wholly in HBM."""
    vllm_config, workers = _build(question)
    per_worker = _groups(vllm_config, workers)
    builder = _builder(vllm_config)
    blocks_of = [_pool_bytes(vllm_config, groups) for groups in per_worker]
    plans = []
    for length in question["lengths"]:
        vllm_config.model_config.max_model_len = length
        needed = [planning._max_memory_usage_bytes_from_groups(*builder, vllm_config, one) for one in per_worker]
        budgets = [_fit(vllm_config, workers, per_worker, budget) for budget in _budgets(question, needed, blocks_of)]
        plans.append({"tokens": length, "needed": max(needed), "budgets": budgets})
    return {
        "block_bytes": blocks_of,
        "workers": [[_group(group) for group in groups] for groups in per_worker],
        "plans": plans,
    }


def _budgets(question: Question, needed: list[int], blocks_of: list[int]) -> list[int]:
    """Budgets about what one request needs: where the engine just starts, just does not, and some beside."""
    most = max(needed)
    edge = max(need + block for need, block in zip(needed, blocks_of, strict=True))
    return [int(most * share) for share in question["shares"]] + [edge, edge - 1]


def _fit(vllm_config: _Vllm, workers: list[dict[str, Any]], per_worker: list[list[Any]], budget: int) -> dict[str, Any]:
    answer: dict[str, Any] = {"budget": budget}
    try:
        configs = _plan(vllm_config, workers, budget)
    except ValueError as error:
        found = re.search(r"estimated maximum model length is (\d+)", str(error))
        longest = _longest(vllm_config, per_worker, budget)
        return {**answer, "starts": False, "longest": longest, "estimate": int(found[1]) if found else 0}
    scheduler = kv_cache_utils.generate_scheduler_kv_cache_config(configs)
    tokens, concurrency = kv_cache_utils.get_kv_cache_capacity(vllm_config, scheduler)
    return {**answer, "starts": True, "blocks": scheduler.num_blocks, "concurrency": concurrency, "logged": tokens}


def _longest(vllm_config: _Vllm, per_worker: list[list[Any]], budget: int) -> int:
    """The longest request that the pools of all workers hold, beside the null block."""
    return min(
        planning._estimate_max_model_len_from_groups(
            *_builder(vllm_config), vllm_config, groups, budget - _pool_bytes(vllm_config, groups)
        )
        for groups in per_worker
        if groups
    )


def hisparse_pools(question: Question) -> dict[str, Any]:
    """GPU and host pool under HiSparse, for pools that just hold one request and for larger ones."""
    with _as_cuda():
        vllm_config, (worker,) = _build(question)
        (groups,) = _hisparse_groups(vllm_config, worker)
        block = _pool_bytes(vllm_config, groups)
        config = hisparse.create_hisparse_layout(vllm_config, groups, 1 << 60)
        hot = [one.kv_cache_spec for one in groups if isinstance(one.kv_cache_spec, interface.HiSparseHotSpec)]
        plans = []
        for length in question["lengths"]:
            vllm_config.model_config.max_model_len = length
            needed = planning._max_memory_usage_bytes_from_groups(*_builder(vllm_config), vllm_config, groups)
            fits = [
                _hisparse_fit(vllm_config, worker, needed + block + gpu, config.host_block_stride * blocks)
                for gpu, blocks in _pools(question, length, block)
            ]
            plans.append({"tokens": length, "needed": needed, "fits": fits})
    return {
        "gpu_block_bytes": block,
        "host_block_bytes": config.host_block_stride,
        "shared": config.shared_host_pool,
        "groups": len(hot),
        "hot_blocks": sorted({spec.blocks_per_request for spec in hot}),
        "plans": plans,
    }


def _hisparse_groups(vllm_config: _Vllm, worker: dict[str, Any]) -> list[list[Any]]:
    if planning is kv_cache_utils:
        groups = planning.get_kv_cache_groups(vllm_config, dict(worker))
    else:
        groups = planning.get_global_kv_cache_groups(vllm_config, [dict(worker)])
    return [groups]


def _pools(question: Question, length: int, block: int) -> Iterator[tuple[int, int]]:
    """(GPU bytes beside what one request needs, host blocks): the edges of both pools, and some larger ones."""
    least = -(-length // 64) + 2
    yield from ((0, least), (-1, least), (0, least - 1))
    for share in question["shares"]:
        yield int(share * least) * block, int((1 + share) * least)


def _hisparse_fit(vllm_config: _Vllm, worker: dict[str, Any], gpu_bytes: int, host_bytes: int) -> dict[str, Any]:
    extra = {"host_pool_gib": host_bytes / 2**30}
    vllm_config.kv_transfer_config = types.SimpleNamespace(
        kv_connector="HiSparseConnector", kv_connector_extra_config=extra
    )
    answer: dict[str, Any] = {"gpu_bytes": gpu_bytes, "host_bytes": host_bytes}
    try:
        (config,) = _plan(vllm_config, [worker], gpu_bytes)
    except ValueError as error:
        return {**answer, "starts": False, "why": str(error)[:200]}
    tokens, concurrency = kv_cache_utils.get_kv_cache_capacity(vllm_config, config)
    return {
        **answer,
        "starts": True,
        "gpu_blocks": config.num_blocks,
        "host_blocks": config.hisparse_host_num_blocks,
        "admission": concurrency,
        "logged": tokens,
        "steady": hisparse.get_hisparse_steady_state_concurrency(vllm_config, config),
    }


def pipeline(question: Question) -> dict[str, Any]:
    """Layers of each pipeline rank."""
    layers, ranks = question["layers"], question["ranks"]
    bounds = [get_pp_indices(layers, rank, ranks) for rank in range(ranks)]
    return {"split": [last - first for first, last in bounds]}


def turboquant(question: Question) -> dict[str, Any]:
    """Slot bytes of a preset, and the layers that stay in 16 bits."""
    model = _Model(is_hybrid=False, hf_text_config=types.SimpleNamespace(num_hidden_layers=question["layers"]))
    return {
        "slot": TurboQuantConfig.from_cache_dtype(question["dtype"], question["head_dim"]).slot_size_aligned,
        "skipped": sorted(int(one) for one in TurboQuantConfig.get_boundary_skip_layers(model)),
    }


def state(question: Question) -> dict[str, Any]:
    """Bytes of one state, by the shape calculator alone."""
    shapes = getattr(MambaStateShapeCalculator, question["shape"])(**question["arguments"])
    widths = question["widths"]
    return {"bytes": sum(math.prod(shape) * width for shape, width in zip(shapes, widths, strict=True))}


_ASKED = {one.__name__: one for one in (plain, hisparse_pools, pipeline, turboquant, state)}


def _answer(question: Question) -> dict[str, Any]:
    try:
        return {"id": question["id"], **_ASKED[question["ask"]](question)}
    except Exception as error:  # noqa: BLE001 - what vLLM refuses is an answer too
        return {
            "id": question["id"],
            "error": f"{type(error).__name__}: {error}",
            "trace": traceback.format_exc()[-1500:],
        }


def main(asked: str, answered: str) -> None:
    """Answer every question of a file."""
    began = time.monotonic()
    answers = [_answer(question) for question in json.loads(Path(asked).read_text())]
    Path(answered).write_text(
        json.dumps({"vllm": version("vllm"), "seconds": round(time.monotonic() - began, 1), "answers": answers})
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
