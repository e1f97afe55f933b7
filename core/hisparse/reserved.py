"""What a user cannot hand to the engine past the operator: arguments, environment, labels, volumes and paths.

Each entry says what to use instead. Two kinds of argument are refused: those that the operator writes itself (a
second copy would make the plan a lie), and those that circulate in articles but that no vLLM release with HiSparse
knows (the engine would die at start, after the node was taken).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True)
class ReservedFlag:
    """An engine argument that is refused; `message` continues the sentence that its name begins."""

    flag: str
    message: str


_OPERATOR = "is set by the operator; set"
_GONE = "does not exist in this vLLM;"

RESERVED: Final[tuple[ReservedFlag, ...]] = tuple(
    ReservedFlag(flag, message)
    for message, flags in (
        # what the plan decides
        (f"{_OPERATOR} kvTier.mode", ("--kv-transfer-config",)),
        (f"{_OPERATOR} kvTier.mode, and kvTier.hiSparse for its tuning", ("--attention-config", "-ac")),
        (
            f"{_OPERATOR} kvTier.mode to Offload, and kvTier.hostPool.size",
            ("--kv-offloading-size", "--cpu-offload-gb"),
        ),
        (f"{_OPERATOR} kvTier.mode", ("--kv-offloading-backend",)),
        (f"{_OPERATOR} context.kvCacheDtype", ("--kv-cache-dtype",)),
        (f"{_OPERATOR} context.maxTokens", ("--max-model-len",)),
        (f"{_OPERATOR} context.maxConcurrentRequests", ("--max-num-seqs",)),
        (f"{_OPERATOR} context.maxBatchedTokens", ("--max-num-batched-tokens",)),
        (f"{_OPERATOR} context.ropeScaling", ("--hf-overrides",)),
        (
            f"{_OPERATOR} resources.gpuMemoryUtilizationPercent",
            ("--gpu-memory-utilization", "--kv-cache-memory-bytes", "--num-gpu-blocks-override"),
        ),
        (f"{_OPERATOR} parallelism.tensor", ("--tensor-parallel-size", "-tp")),
        (f"{_OPERATOR} parallelism.pipeline", ("--pipeline-parallel-size", "-pp")),
        (
            f"{_OPERATOR} parallelism.data",
            (
                "--data-parallel-size",
                "-dp",
                "--data-parallel-size-local",
                "-dpl",
                "--data-parallel-backend",
                "-dpb",
            ),
        ),
        (f"{_OPERATOR} parallelism.expert", ("--enable-expert-parallel", "-ep")),
        (f"{_OPERATOR} model.servedName", ("--served-model-name",)),
        (f"{_OPERATOR} model", ("--model", "--model-tag")),
        (f"{_OPERATOR} model.huggingFace.revision", ("--revision", "--code-revision")),
        (f"{_OPERATOR} model.huggingFace.tokenSecret", ("--hf-token",)),
        (f"{_OPERATOR} model.trustRemoteCode", ("--trust-remote-code",)),
        (f"{_OPERATOR} model.cache", ("--download-dir",)),
        (f"{_OPERATOR} networking.port", ("--port", "--host", "--uds")),
        (f"{_OPERATOR} networking.apiKeySecret", ("--api-key",)),
        (f"{_OPERATOR} lifecycle.drain", ("--shutdown-timeout",)),
        ("is set by the operator from the plan; set the fields of spec instead of a file", ("--config",)),
        # what would break the plan, the metrics or the tier
        (
            "removes every vLLM metric, and the operator and its alerts read them; remove it",
            ("--disable-log-stats",),
        ),
        (
            "chooses how workers start, and other ways than mp multiply the host pool by the number of GPUs; remove it",
            ("--distributed-executor-backend",),
        ),
        (
            "admits requests that the tier cannot hold, and HiSparse refuses to start with it; remove it",
            ("--no-scheduler-reserve-full-isl",),
        ),
        (
            "turns off the cache manager that HiSparse needs; remove it, or set kvTier.mode to None",
            ("--disable-hybrid-kv-cache-manager",),
        ),
        ("changes the KV pages that the plan counts (64 tokens with HiSparse); remove it", ("--block-size",)),
        (
            "spreads one sequence over GPUs, which HiSparse refuses and the plan does not count; remove it",
            ("--decode-context-parallel-size", "-dcp", "--prefill-context-parallel-size", "-pcp"),
        ),
        (
            "makes one replica of several nodes, and a replica is one pod; remove it",
            ("--nnodes", "-n", "--node-rank", "-r", "--headless", "--master-addr", "--master-port"),
        ),
        (
            "takes KV and hot rows for draft layers, which this release does not plan yet; remove it",
            ("--speculative-config", "-sc"),
        ),
        (
            "makes the engine speak TLS, and the launcher asks it in plain HTTP; remove it and end TLS in front",
            ("--ssl-keyfile", "--ssl-certfile", "--ssl-ca-certs", "--enable-ssl-refresh"),
        ),
        # what circulates and does not exist
        (f"{_GONE} this engine never swaps. Set kvTier.hostPool.size", ("--swap-space",)),
        (f"{_GONE} nothing has to be switched on. Set kvTier.mode", ("--enable-hybrid-kv",)),
        (f"{_GONE} MoE layers have no KV. Set context.kvCacheDtype", ("--moekv-sparse-ratio",)),
        (
            f"{_GONE} use --kv-cache-metrics for how long blocks live",
            ("--kv-cache-profiling-window", "--dap-enabled"),
        ),
        (f"{_GONE} set context.ropeScaling", ("--rope-scaling", "--rope-theta")),
        (f"{_GONE} that is SGLang's. Set kvTier.mode", ("--enable-hisparse",)),
        (f"{_GONE} that is SGLang's. Set kvTier.hiSparse", ("--hisparse-config",)),
        (f"{_GONE} set kvTier.hostPool.size", ("--host-pool-gib",)),
        (f"{_GONE} set kvTier.hiSparse.deviceBufferTokens", ("--device-buffer-size",)),
    )
    for flag in flags
)

RESERVED_FLAGS: Final[Mapping[str, str]] = MappingProxyType({entry.flag: entry.message for entry in RESERVED})

# Shorter abbreviations are ambiguous in vLLM's own parser, which refuses them itself.
_LEAST_PREFIX: Final = 5


def flag_name(argument: str) -> str:
    """The name in an argument as vLLM's parser reads it: `--max_model_len=8` and `--max-model-len` are one flag."""
    return argument.split("=", maxsplit=1)[0].split(".", maxsplit=1)[0].replace("_", "-")


# The same in CEL, over self.
FLAG_NAME_CEL: Final = 'self.split("=")[0].split(".")[0].replace("_", "-")'


def check_argument(argument: str) -> str | None:
    """Why this engine argument is refused, or None. Abbreviations that vLLM's parser would complete count too."""
    if not argument.startswith("-"):
        return None
    name = flag_name(argument)
    if name in RESERVED_FLAGS:
        return f'"{name}" {RESERVED_FLAGS[name]}'
    if abbreviated := full_flag(name):
        return f'"{name}" is short for {abbreviated}, which {RESERVED_FLAGS[abbreviated]}'
    return None


def full_flag(name: str) -> str | None:
    """The refused flag that an abbreviation stands for."""
    if not name.startswith("--") or len(name) < _LEAST_PREFIX:
        return None
    return next((flag for flag in RESERVED_FLAGS if flag.startswith(name)), None)


RESERVED_ENV: Final[Mapping[str, str]] = MappingProxyType(
    {
        "VLLM_USE_V2_MODEL_RUNNER": "decides whether HiSparse can run at all; remove it",
        "VLLM_USE_V1": "belongs to an engine that is gone; remove it",
        "VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS": f"{_OPERATOR} lifecycle.workerShutdown",
        "VLLM_ENGINE_READY_TIMEOUT_S": f"{_OPERATOR} lifecycle.startupBudget",
        "VLLM_KEEP_ALIVE_ON_ENGINE_DEATH": "would keep a dead engine in traffic; remove it",
        "VLLM_ALLOW_LONG_MAX_MODEL_LEN": (
            "lets the engine run past the positions that its model knows; set context.ropeScaling"
        ),
        "VLLM_PLUGINS": "is a list of all that may load, and the operator's own plugins would be missing; remove it",
        "VLLM_API_KEY": f"{_OPERATOR} networking.apiKeySecret",
        "VLLM_CACHE_ROOT": "is set by the operator to a volume that is writable; remove it",
        "VLLM_PORT": f"{_OPERATOR} networking.port",
        "HF_HOME": f"{_OPERATOR} model.cache",
        "HF_HUB_CACHE": f"{_OPERATOR} model.cache",
        "HF_TOKEN": f"{_OPERATOR} model.huggingFace.tokenSecret",
        "HUGGING_FACE_HUB_TOKEN": f"{_OPERATOR} model.huggingFace.tokenSecret",
        "HOME": "is set by the operator to a volume that is writable; remove it",
        "TRITON_CACHE_DIR": "is set by the operator to a volume that is writable; remove it",
        "CUDA_VISIBLE_DEVICES": "is set by the device plugin; set resources.gpus",
        "NVIDIA_VISIBLE_DEVICES": "is set by the device plugin; set resources.gpus",
    }
)

# Keys of labels and annotations with these prefixes are the operator's.
RESERVED_KEY_PREFIXES: Final = ("app.kubernetes.io/", "inference.hisparse.dev/", "controller.kubernetes.io/")
# Volumes and containers whose names begin so are the operator's: it may add one without breaking anybody's overlay.
RESERVED_NAME_PREFIX: Final = "hisparse-"
ENGINE_CONTAINER: Final = "engine"
# by these the node agent finds the pods of engines, and their /dev/shm in the kubelet's folder
INFERENCE_LABEL: Final = "inference.hisparse.dev/inference"
COMPONENT_LABEL: Final = "app.kubernetes.io/component"
ENGINE_COMPONENT: Final = "engine"
SHM_VOLUME: Final = "hisparse-shm"
LAUNCHER_PORT: Final = 8001
RESERVED_PATHS: Final = ("/dev/shm", "/etc/hisparse", "/hisparse", "/models", "/cache")
