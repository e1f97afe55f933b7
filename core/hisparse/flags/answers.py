"""What is known by hand about names and values: why a flag is gone, what took its place, whose flag it is.

The data in known.py say when a name came and went; nothing here does. `source` is the file of vLLM 0.33 that the
sentence was read in, unless it names something else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from hisparse.flags.verdict import Kind


@dataclass(frozen=True)
class Answer:
    """Why, and what to write instead ("" where nothing is to be written)."""

    says: str
    instead: str = ""
    source: str = "engine/arg_utils.py"
    renamed: bool = False
    """The same thing has another name now; otherwise the thing itself is gone."""


@dataclass(frozen=True)
class Foreign:
    """What a variable of another program does for vLLM."""

    kind: Kind
    says: str
    source: str


def _renamed(instead: str, says: str = "the same under another name", source: str = "engine/arg_utils.py") -> Answer:
    return Answer(says, instead, source, renamed=True)


LEAVE_OUT: Final = "leave it out"

HISPARSE_FLAG: Final = (
    '--kv-transfer-config \'{"kv_connector":"HiSparseConnector","kv_role":"kv_both",'
    '"kv_connector_extra_config":{"host_pool_gib":N}}\''
)
"""What switches HiSparse on (config/kv_transfer.py); N stands for the size, which a plan says."""

POOL_FLAG: Final = "--kv-transfer-config.kv_connector_extra_config.host_pool_gib N"
"""The size alone, for whoever writes the other keys one by one."""

POOL_SIZE: Final = "N is a number of GiB, and hisparse plan says how many"

_HOST_TIER: Final = "host_pool_gib of the HiSparseConnector, or --kv-offloading-size GiB for models without an indexer"
_ROPE: Final = "--hf-overrides.rope_parameters.factor and its neighbours (rope_type, original_max_position_embeddings)"
_SPECULATIVE: Final = "speculative decoding is one JSON argument"
_V0: Final = "belonged to the V0 engine, which is gone"
_BY_RESULT: Final = "the adapters that it configured are gone"
_IMAGES: Final = "vLLM reads it from the model's own config"
_STRUCTURED: Final = "guided decoding is called structured outputs"

REMOVED_FLAGS: Final[Mapping[str, Answer]] = MappingProxyType(
    {
        "--swap-space": Answer(
            "the engine never swaps: under pressure it preempts a request and computes it again",
            _HOST_TIER,
            "v1/core/sched/scheduler.py",
        ),
        "--rope-scaling": _renamed(_ROPE, "RoPE is changed through the model's config"),
        "--rope-theta": _renamed(
            "--hf-overrides.rope_parameters.rope_theta", "RoPE is changed through the model's config"
        ),
        "--disable-log-requests": Answer("requests are not logged unless --enable-log-requests says so", ""),
        "--use-v2-block-manager": Answer(f"{_V0}; there is one block manager"),
        "--num-scheduler-steps": Answer(f"multi-step scheduling {_V0}; scheduling is asynchronous by itself"),
        "--multi-step-stream-outputs": Answer(f"multi-step scheduling {_V0}"),
        "--preemption-mode": Answer("preempted requests are always computed again; there is no swapping to choose"),
        "--scheduler-delay-factor": Answer(_V0),
        "--num-lookahead-slots": Answer("follows from the speculative decoding that is set", "--speculative-config"),
        "--disable-async-output-proc": Answer(_V0),
        "--guided-decoding-backend": _renamed("--structured-outputs-config.backend", _STRUCTURED),
        "--guided-decoding-disable-fallback": Answer(
            f"{_STRUCTURED}, and a request that its backend cannot serve fails"
        ),
        "--guided-decoding-disable-any-whitespace": _renamed(
            "--structured-outputs-config.disable_any_whitespace", _STRUCTURED
        ),
        "--guided-decoding-disable-additional-properties": _renamed(
            "--structured-outputs-config.disable_additional_properties", _STRUCTURED
        ),
        "--task": _renamed(
            "--runner pooling, with --convert embed, classify or reward; nothing for text generation",
            "what a model does is told by two flags",
            "utils/argparse_utils.py",
        ),
        "--speculative-model": _renamed("--spec-model", _SPECULATIVE),
        "--num-speculative-tokens": _renamed("--spec-tokens", _SPECULATIVE),
        "--speculative-draft-tensor-parallel-size": _renamed(
            "--speculative-config.draft_tensor_parallel_size", _SPECULATIVE
        ),
        "-spec-draft-tp": _renamed("--speculative-config.draft_tensor_parallel_size", _SPECULATIVE),
        "--speculative-max-model-len": _renamed("--speculative-config.max_model_len", _SPECULATIVE),
        "--speculative-model-quantization": _renamed("--speculative-config.quantization", _SPECULATIVE),
        "--speculative-disable-by-batch-size": Answer(_V0),
        "--speculative-disable-mqa-scorer": Answer(_V0),
        "--disable-logprobs-during-spec-decoding": Answer(_V0),
        "--ngram-prompt-lookup-max": _renamed("--speculative-config.prompt_lookup_max", _SPECULATIVE),
        "--ngram-prompt-lookup-min": _renamed("--speculative-config.prompt_lookup_min", _SPECULATIVE),
        "--spec-decoding-acceptance-method": Answer(_V0),
        "--typical-acceptance-sampler-posterior-alpha": Answer(_V0),
        "--typical-acceptance-sampler-posterior-threshold": Answer(_V0),
        "--max-seq-len-to-capture": Answer(
            "CUDA graphs are captured by batch and not by length", "--max-cudagraph-capture-size, or nothing"
        ),
        "--max-context-len-to-capture": Answer(
            "CUDA graphs are captured by batch and not by length", "--max-cudagraph-capture-size, or nothing"
        ),
        "--cuda-graph-sizes": _renamed("--cudagraph-capture-sizes"),
        "--enable-reasoning": Answer("a parser switches it on", "--reasoning-parser alone"),
        "--worker-use-ray": _renamed("--distributed-executor-backend ray"),
        "--engine-use-ray": Answer("the engine runs in its own process; only workers may use Ray"),
        "--device": Answer("the platform is found by itself; a build is for one platform"),
        "--disable-frontend-multiprocessing": Answer("the server and the engine are always two processes"),
        "--disable-mm-preprocessor-cache": _renamed("--mm-processor-cache-gb 0"),
        "--enable-multimodal-encoder-data-parallel": _renamed("--mm-encoder-tp-mode data"),
        "--override-pooler-config": _renamed("--pooler-config"),
        "--override-neuron-config": _renamed("--additional-config"),
        "--eplb-window-size": _renamed("--eplb-config.window_size"),
        "--eplb-step-interval": _renamed("--eplb-config.step_interval"),
        "--eplb-log-balancedness": _renamed("--eplb-config.log_balancedness"),
        "--num-redundant-experts": _renamed("--eplb-config.num_redundant_experts"),
        "--enable-lora-bias": Answer("biases of adapters are not supported any more"),
        "--lora-extra-vocab-size": Answer("adapters cannot add words to the vocabulary any more"),
        "--long-lora-scaling-factors": Answer(_V0),
        "--enable-prompt-adapter": Answer(_BY_RESULT),
        "--prompt-adapters": Answer(_BY_RESULT),
        "--max-prompt-adapters": Answer(_BY_RESULT),
        "--max-prompt-adapter-token": Answer(_BY_RESULT),
        "--quantization-param-path": Answer("scales of the KV cache come with the checkpoint"),
        "--calculate-kv-scales": Answer("scales of the KV cache come with the checkpoint, or are 1"),
        "--tokenizer-pool-size": Answer(_V0),
        "--tokenizer-pool-type": Answer(_V0),
        "--tokenizer-pool-extra-config": Answer(_V0),
        "--image-input-type": Answer(_IMAGES),
        "--image-input-shape": Answer(_IMAGES),
        "--image-token-id": Answer(_IMAGES),
        "--image-feature-size": Answer(_IMAGES),
    }
)
"""Flags that some release had; what is not here is told by the data alone."""

_HISPARSE: Final = "it is switched on by its connector"
_SGLANG: Final = "a flag of SGLang"
_DEVICE_BUFFER: Final = '--attention-config \'{"hisparse_config":{"device_buffer_size":6144}}\''

CIRCULATING_FLAGS: Final[Mapping[str, Answer]] = MappingProxyType(
    {
        "--enable-hybrid-kv": Answer(
            f"no flag and no build option: wheels hold the kernels of HiSparse since 0.30, and {_HISPARSE}",
            HISPARSE_FLAG,
        ),
        "--moekv-sparse-ratio": Answer("MoE layers have no KV cache to thin out", "--kv-cache-dtype fp8"),
        "--kv-cache-profiling-window": Answer(
            "there is no profiler of access to the KV cache", "--kv-cache-metrics, with --kv-cache-metrics-sample"
        ),
        "--dap-enabled": Answer(
            "there is no profiler of access to the KV cache", "--kv-cache-metrics, with --kv-cache-metrics-sample"
        ),
        "--host-pool-gib": Answer("it is a key of the connector's extra config", HISPARSE_FLAG),
        "--device-buffer-size": Answer("it is a key of hisparse_config", _DEVICE_BUFFER),
        "--eager-host-mirror": Answer(
            "it is a key of hisparse_config", '--attention-config \'{"hisparse_config":{"eager_host_mirror":false}}\''
        ),
    }
)
"""Flags of vLLM that articles name and no release read here had."""

OTHER_ENGINES_FLAGS: Final[Mapping[str, Answer]] = MappingProxyType(
    {
        "--enable-hisparse": Answer(f"{_SGLANG}; HiSparse in vLLM has none, {_HISPARSE}", HISPARSE_FLAG),
        "--hisparse-config": Answer(f"{_SGLANG}; in vLLM it is a part of the attention config", _DEVICE_BUFFER),
        "--host-to-device-ratio": Answer(f"a key of {_SGLANG}; vLLM takes the host pool in GiB", HISPARSE_FLAG),
        "--model-path": Answer(_SGLANG, "the model as first word: vllm serve MODEL"),
        "--context-length": Answer(_SGLANG, "--max-model-len"),
        "--mem-fraction-static": Answer(_SGLANG, "--gpu-memory-utilization"),
        "--tp-size": Answer(_SGLANG, "--tensor-parallel-size (-tp)"),
        "--tp": Answer(_SGLANG, "--tensor-parallel-size (-tp)"),
        "--dp-size": Answer(_SGLANG, "--data-parallel-size (-dp)"),
        "--ep-size": Answer(_SGLANG, "--enable-expert-parallel"),
        "--max-running-requests": Answer(_SGLANG, "--max-num-seqs"),
        "--chunked-prefill-size": Answer(_SGLANG, "--max-num-batched-tokens"),
        "--disable-radix-cache": Answer(_SGLANG, "--no-enable-prefix-caching"),
        "--enable-hierarchical-cache": Answer(_SGLANG, "--kv-offloading-size"),
        "--hicache-ratio": Answer(_SGLANG, "--kv-offloading-size"),
        "--hicache-size": Answer(_SGLANG, "--kv-offloading-size"),
        "--num-shard": Answer("a flag of text-generation-inference", "--tensor-parallel-size"),
        "--max-total-tokens": Answer("a flag of text-generation-inference", "--max-model-len"),
        "--max-input-length": Answer("a flag of text-generation-inference", "--max-model-len"),
        "--max-input-tokens": Answer("a flag of text-generation-inference", "--max-model-len"),
        "--ctx-size": Answer("a flag of llama.cpp", "--max-model-len"),
        "--n-gpu-layers": Answer("a flag of llama.cpp", "--cpu-offload-gb, if weights do not fit"),
    }
)
"""Flags that belong to other engines."""

NOTES: Final[Mapping[str, Answer]] = MappingProxyType(
    {
        "--enforce-eager": Answer("no CUDA graphs: decoding is slower; for finding faults", source="config/model.py"),
        "--trust-remote-code": Answer(
            "runs code of the model's repository; models that vLLM knows by themselves do not need it",
            source="config/model.py",
        ),
        "--config": Answer("the flags in that file are not seen here", source="utils/argparse_utils.py"),
    }
)
"""What is worth knowing about a flag that is right."""

DEPRECATED_FLAGS: Final[Mapping[str, Answer]] = MappingProxyType(
    {
        "--log-config-file": Answer("deprecated, with a warning", "--logging-config.pylogging_config_file"),
        "--mamba-cache-mode": Answer("deprecated and without effect", "--enable-prefix-caching"),
        "--ir-op-priority": Answer("deprecated, and meant to go in 0.34"),
        "--disable-cascade-attn": Answer("deprecated and without effect: cascade attention is gone"),
    }
)
"""Flags that the parser takes with a warning; read in 0.33, and applied to it alone."""

DEPRECATED_SINCE: Final = "0.33"

LIMITS: Final[Mapping[str, str]] = MappingProxyType(
    {
        # a socket's, which no config declares
        "--port": "ge=0 le=65535",
        # releases before those whose limits have been read divide by both
        "--tensor-parallel-size": "ge=1",
        "--pipeline-parallel-size": "ge=1",
    }
)
"""Bounds that known.py does not hold, as it would write them."""

LIMITS_SOURCE: Final[Mapping[str, str]] = MappingProxyType({"--port": "entrypoints/launchers/launcher.py"})
"""Where a bound was read that is in no file of config/."""

UNUSED_PORT: Final = ("--uds", "--headless")
"""With these nothing listens on --port."""

LIMITED_WITH: Final[Mapping[str, str]] = MappingProxyType(
    {
        "--max-loras": "--enable-lora",
        "--max-lora-cls-labels": "--enable-lora",
    }
)
"""Flags whose bounds vLLM looks at only together with another (create_engine_config)."""

MULTIMODAL: Final = ("--mm-", "--video-pruning-rate")
"""How flags begin whose bounds vLLM looks at only for models that take more than text (config/model.py)."""

ON_ANYWAY: Final[Mapping[str, str]] = MappingProxyType(
    {
        "--enable-chunked-prefill": "config/scheduler.py",
        "--enable-prefix-caching": "config/cache.py",
    }
)
"""Switches without a default in the parser, which are on for every model that generates text."""

ON_SINCE: Final = "0.30"
"""The first release in which ON_ANYWAY was read."""

_DRIVER: Final = "CUDA Programming Guide, environment variables"

OTHER_VARIABLES: Final[Mapping[tuple[str, str], Foreign]] = MappingProxyType(
    {
        ("CUDA_CACHE_MAXSIZE", ""): Foreign(
            Kind.NO_EFFECT,
            "the size of the driver's compilation cache on disk; it reserves and frees no GPU memory",
            _DRIVER,
        ),
        ("CUDA_MODULE_LOADING", "LAZY"): Foreign(
            Kind.DEFAULT, "the driver loads modules lazily by itself since CUDA 12.2", _DRIVER
        ),
        ("CUDA_MODULE_LOADING", ""): Foreign(Kind.OTHER_PROGRAM, "read by the CUDA driver", _DRIVER),
    }
)
"""Variables of other programs by name and value; "" stands for every value."""

REMOVED_VARIABLES: Final[Mapping[str, Answer]] = MappingProxyType(
    {
        "VLLM_USE_V1": Answer("there is one engine, and it is V1"),
        "VLLM_ATTENTION_BACKEND": Answer("it is a flag now", "--attention-backend", renamed=True),
        "VLLM_FLASH_ATTN_VERSION": Answer(
            "it is a flag now", "--attention-config.flash_attn_version", "config/attention.py", renamed=True
        ),
        "VLLM_ALL2ALL_BACKEND": Answer("it is a flag now", "--all2all-backend", renamed=True),
        "VLLM_TORCH_PROFILER_DIR": Answer("it is a flag now", "--profiler-config.torch_profiler_dir", renamed=True),
        "VLLM_PREFIX_CACHE_RETENTION_INTERVAL": Answer(
            "it is a flag now", "--prefix-cache-retention-interval", renamed=True
        ),
        "VLLM_MM_HASHER_ALGORITHM": Answer("it is a flag now", "--mm-hasher-algorithm", renamed=True),
        "VLLM_MM_INPUT_CACHE_GIB": Answer("it is a flag now", "--mm-processor-cache-gb", renamed=True),
        "VLLM_USE_TRITON_FLASH_ATTN": Answer("the backend is chosen by a flag", "--attention-backend"),
    }
)

NEVER_VARIABLES: Final[Mapping[str, Answer]] = MappingProxyType(
    {"VLLM_HISPARSE": Answer(f"no variable is about HiSparse; {_HISPARSE}", HISPARSE_FLAG, "envs.py")}
)
"""By the beginning of the name."""

FOREIGN_KEYS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "host_pool_gib": "belongs to kv_connector_extra_config of the HiSparseConnector",
        "host_to_device_ratio": "is a key of SGLang; vLLM takes host_pool_gib, a key of the connector",
        "top_k": "is a key of SGLang; vLLM reads index_topk of the model",
        "swap_in_block_size": "is a key of SGLang; vLLM fetches single rows",
    }
)
"""Keys that are looked for in hisparse_config and are not there."""

KV_DTYPES: Final[Mapping[str, str]] = MappingProxyType(
    {"hybrid_hisparse": f"HiSparse is no type of KV cache: {_HISPARSE}"}
)
"""Values of --kv-cache-dtype that circulate."""

CIRCULATING_WORDS: Final[Mapping[str, Answer]] = MappingProxyType(
    {name: Answer(why, HISPARSE_FLAG, "config/cache.py") for name, why in KV_DTYPES.items()}
)
"""What articles tell people to write into files."""

_NETWORK: Final = "is about network cards with RDMA; HiSparse on one node reads host memory over PCIe and needs none"

OTHER_WORDS: Final[Mapping[str, Answer]] = MappingProxyType(
    {word: Answer(_NETWORK, source="") for word in ("nvidia-peermem", "nvidia_peermem", "ibstat")}
)
"""Commands that articles put beside vLLM."""
