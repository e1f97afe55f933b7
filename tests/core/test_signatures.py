"""Known failures are found in logs as they really look: CR LF, a generic last line, noise around them."""

from __future__ import annotations

import pytest

from hisparse.signatures import SIGNATURES, find

GENERIC = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"


def log(*causes: str) -> str:
    before = [f"(EngineCore pid=7) INFO step {i}\r" for i in range(50)]
    return "\n".join([*before, *(f"(EngineCore pid=7) ERROR 11-29 [core.py:1584] {c}\r" for c in causes), GENERIC])


@pytest.mark.parametrize(
    ("line", "name"),
    [
        (
            "ValueError: HiSparse host pool has 8525 blocks but max_model_len needs 16386; increase host_pool_gib.",
            "HostPoolTooSmall",
        ),
        (
            "ValueError: HiSparse pinned host pool needs ~400 GiB but only 118 GiB of RAM is available. Lower the "
            "HiSparseConnector host_pool_gib or leave headroom for co-tenants.",
            "HostPoolExceedsMemory",
        ),
        (
            "ValueError: To serve at least one request with the model's max seq len (1048576), (8.33 GiB KV cache is "
            "needed, which is larger than the available KV cache memory (4.0 GiB).",
            "KvCacheTooSmall",
        ),
        (
            "HiSparse device_buffer_size must cover every decode query's index_topk rows. Got device_buffer_size=1024",
            "DeviceBufferTooSmall",
        ),
        (
            "Value error, HiSparse does not support cudagraph_mode=FULL; use FULL_AND_PIECEWISE (the default)",
            "HiSparseUnsupported",
        ),
        ("RuntimeError: Insufficient space in /dev/shm for CPU KV offload shared region in /dev/shm", "ShmTooSmall"),
        ("RuntimeError: cudaHostRegister failed: out of memory", "HostRegisterFailed"),
        ("OSError: [Errno 14] Bad address", "StaleOffloadRegion"),
        ("torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 8.00 GiB", "CudaOutOfMemory"),
        ("vllm: error: unrecognized arguments: --swap-space 128", "UnknownArgument"),
        ("Value error, Invalid kv_cache_dtype: 'hybrid_hisparse'. Valid values are: [...]", "InvalidKvCacheDtype"),
    ],
)
def test_the_cause_wins_over_the_generic_last_line(line: str, name: str) -> None:
    match = find(log(line))
    assert match is not None
    assert match.signature.name == name
    assert "\r" not in match.line
    assert not match.line.startswith("(EngineCore")


def test_an_unknown_failure_is_named_as_such() -> None:
    match = find(log("KeyError: 'surprise'"))
    assert match is not None
    assert match.signature.name == "EngineStartFailed"


def test_a_normal_shutdown_is_not_a_failure() -> None:
    text = "INFO [shutdown] API server: shutdown triggered\nERROR AsyncLLM output_handler failed\nEngineDeadError"
    assert find(text) is None


def test_a_clean_log_matches_nothing() -> None:
    assert find("INFO Application startup complete.\n") is None


def test_the_warning_that_looks_like_a_refusal_is_none() -> None:
    warning = (
        "WARNING HiSparse host-resident KV is configured with connector HiSparseConnector. NixlConnector and "
        "MooncakeStoreConnector are the validated paths; other connectors are treated as debug/fallback paths."
    )
    assert find(warning) is None


def test_every_signature_says_what_to_do_and_is_named_once() -> None:
    assert len({s.name for s in SIGNATURES}) == len(SIGNATURES)
    for signature in SIGNATURES:
        assert signature.cause
        assert signature.next_step
