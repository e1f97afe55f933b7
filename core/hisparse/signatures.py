"""Known failures of the engine, by the text that it prints.

The last line of a failed start is generic ("Engine core initialization failed"); the cause is a line of EngineCore
well above it. find() looks for causes first and takes the generic line only where nothing else matched.
Texts were read in vLLM 0.32/0.33 sources or seen in real logs (docs/engine-facts.md).
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Signature:
    """One known failure: the text that shows it, what it means, and what to do."""

    name: str
    pattern: str
    cause: str
    next_step: str


@dataclass(frozen=True)
class Match:
    """A signature and the line of the log that shows it."""

    signature: Signature
    line: str


SIGNATURES: tuple[Signature, ...] = (
    Signature(
        "HostPoolTooSmall",
        r"HiSparse host pool has \d+ blocks but max_model_len needs \d+",
        "the host pool cannot hold one request of max_model_len",
        "raise kvTier.hostPool.size or lower context.maxTokens",
    ),
    Signature(
        "HostPoolExceedsMemory",
        r"HiSparse pinned host pool needs ~?[\d.]+ GiB but only [\d.]+ GiB of RAM is available",
        "the node has less memory available than the host pool: something else holds it, or an earlier pool is still "
        "being freed",
        "lower kvTier.hostPool.size, or see what holds the node's memory",
    ),
    Signature(
        "ShmTooSmall",
        r"Insufficient space in /dev/shm",
        "/dev/shm of the pod is smaller than the shared region",
        "the operator sizes /dev/shm from the plan: a podTemplate volume may hide it",
    ),
    Signature(
        "HostRegisterFailed",
        r"cudaHostRegister failed",
        "the driver refused to pin the host pool",
        "lower kvTier.hostPool.size; check the node's locked-memory limits and free memory",
    ),
    Signature(
        "StaleOffloadRegion",
        r"OSError: \[Errno 14\] Bad address",
        "a file of an earlier engine is left in /dev/shm",
        "delete the pod (not only the container) so that /dev/shm is new",
    ),
    Signature(
        "HiSparseUnsupported",
        r"HiSparse (?:currently requires|does not support|is only supported|requires) ",
        "the engine refuses HiSparse with this model, flag or platform",
        "read the line: it names what is not supported; set kvTier.mode None to run without",
    ),
    Signature(
        "DeviceBufferTooSmall",
        r"HiSparse device_buffer_size must cover every decode query",
        "kvTier.hiSparse.deviceBufferTokens is smaller than index_topk rows per query",
        "leave kvTier.hiSparse.deviceBufferTokens out",
    ),
    Signature(
        "KvCacheTooSmall",
        r"To serve at least one request with the model's max seq len",
        "one request of max_model_len does not fit in the HBM that is left for KV",
        "lower context.maxTokens, or let kvTier.mode be Auto",
    ),
    Signature(
        "NoKvCacheMemory",
        r"No available memory for the cache blocks",
        "weights and activations leave nothing for KV",
        "raise resources.gpuMemoryUtilizationPercent or use more GPUs",
    ),
    Signature(
        "FreeGpuMemoryTooLow",
        r"Free memory on device .* is less than desired GPU memory utilization",
        "another process holds GPU memory on this card",
        "find it with nvidia-smi on the node; an engine that was killed may still be freeing its memory",
    ),
    Signature(
        "CudaOutOfMemory",
        r"(?:torch\.)?(?:cuda\.)?OutOfMemoryError|CUDA out of memory",
        "a GPU allocation failed while running",
        "lower context.maxBatchedTokens or resources.gpuMemoryUtilizationPercent",
    ),
    Signature(
        "InvalidKvCacheDtype",
        r"Invalid kv_cache_dtype|argument --kv-cache-dtype: invalid choice",
        "the engine does not know this KV dtype",
        "set context.kvCacheDtype; check that engine.version is the image's version",
    ),
    Signature(
        "UnknownArgument",
        r"unrecognized arguments: .*",
        "engine.args has a flag that this vLLM does not know",
        "remove it from engine.args, or set engine.version to the image's version",
    ),
    Signature(
        "ContextAboveModel",
        r"User-specified max_model_len \(\d+\) is greater than the derived max_model_len",
        "the model has fewer positions than context.maxTokens",
        "lower context.maxTokens or set context.ropeScaling",
    ),
    Signature(
        "ModelNotFound",
        r"RepositoryNotFoundError|LocalEntryNotFoundError|is not a local folder and is not a valid model identifier"
        r"|Invalid repository ID or local directory",
        "the model is not where model says",
        "check model.huggingFace.repo and revision, or the path on the volume",
    ),
    Signature(
        "ModelAccessDenied",
        r"GatedRepoError|401 Client Error|403 Client Error",
        "the hub refuses this model to this token",
        "set model.huggingFace.tokenSecret to a token that may read it",
    ),
    Signature(
        "DiskFull",
        r"No space left on device",
        "the model or a cache does not fit on its volume",
        "raise resources.ephemeralStorage or set model.cache",
    ),
    Signature(
        "EngineStartTimeout",
        r"Timed out waiting for engine core processes to start",
        "the engine took longer to start than its time-out",
        "raise lifecycle.startupBudget",
    ),
    Signature(
        "HostImportFault",
        r"unspecified launch failure|cudaErrorLaunchFailure",
        "a kernel died; the engine cannot recover",
        "the pod restarts; report it with the log if it comes back",
    ),
    Signature(
        "LauncherPreflight",
        r"hisparse-launch: (?:error|refused|preflight)\b.*",
        "the launcher refused to start the engine",
        "read the line: it names the limit and what to change",
    ),
)

_GENERIC = Signature(
    "EngineStartFailed",
    r"Engine core initialization failed",
    "the engine failed to start for a reason that is not in the catalogue",
    "read lastFailure.logTail and the pod's log: the cause is an EngineCore line above the last one",
)

_DRAINING = re.compile(r"\[shutdown\] API server: shutdown triggered")
_PREFIX = re.compile(r"^\([^)]*\)\s*")


def find(log: str) -> Match | None:
    """A known cause in a log, in the order of the catalogue (the most telling first), else the generic line, else None.

    What follows the start of a normal shutdown is left out: vLLM logs EngineDeadError while it drains.
    """
    lines = [line.rstrip("\r") for line in log.split("\n")]
    end = next((i for i, line in enumerate(lines) if _DRAINING.search(line)), len(lines))
    lines = lines[:end]
    for signature in (*SIGNATURES, _GENERIC):
        pattern = re.compile(signature.pattern)
        for line in lines:
            if pattern.search(line):
                return Match(signature, _PREFIX.sub("", line).strip())
    return None
