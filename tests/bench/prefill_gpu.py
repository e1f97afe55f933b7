"""What share of a GPU's dense peak the layers of a dense model reach in prefill, and what its memory gives: on a GPU.

`python tests/bench/prefill_gpu.py OUT.json` needs PyTorch with CUDA, random weights only, and takes about two minutes.
One layer is timed as the engine runs it: chunks of 8,192 tokens, QKV, attention to everything before, output, MLP.
The FLOP are counted as hisparse.prefill counts them. Nothing of the card's settings is touched.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

CHUNK = 8192
SHAPES = {
    "8B: 4096 wide, 32 heads, 8 KV heads, MLP 14336": (4096, 32, 8, 128, 14_336),
    "32B: 5120 wide, 40 heads, 8 KV heads, MLP 46720": (5120, 40, 8, 128, 46_720),
    "70B, one of 8 ranks: 8192 wide, 8 heads, 1 KV head, MLP 3584": (8192, 8, 1, 128, 3_584),
}
BEFORE = (0, 57_344, 122_880, 253_952, 516_096)
"""Tokens before the chunk: the last one then ends at 8K, 64K, 128K, 256K and 512K."""


@dataclass(frozen=True)
class _Layer:
    """Random weights of one layer on the GPU."""

    qkv: Any
    out: Any
    up: Any
    down: Any
    heads: int
    kv_heads: int
    dim: int


def _layer(torch: Any, shape: Sequence[int]) -> _Layer:
    width, heads, kv_heads, dim, inner = shape

    def matrix(rows: int, columns: int) -> Any:
        return torch.randn(rows, columns, dtype=torch.bfloat16, device="cuda") * 0.02

    return _Layer(
        matrix(width, (heads + 2 * kv_heads) * dim),
        matrix(heads * dim, width),
        matrix(width, 2 * inner),
        matrix(inner, width),
        heads,
        kv_heads,
        dim,
    )


def _gemms(torch: Any, layer: _Layer, x: Any) -> Any:
    y = (x @ layer.qkv)[:, : layer.heads * layer.dim] @ layer.out
    gate, up = (y @ layer.up).chunk(2, dim=-1)
    return (torch.nn.functional.silu(gate) * up) @ layer.down


def _attention(torch: Any, layer: _Layer, before: int) -> Callable[[], Any]:
    """The chunk's queries against all keys so far: a full block before it and a causal one on the diagonal."""
    queries = torch.randn(1, layer.heads, CHUNK, layer.dim, dtype=torch.bfloat16, device="cuda")
    keys = torch.randn(1, layer.kv_heads, before + CHUNK, layer.dim, dtype=torch.bfloat16, device="cuda")
    attend = torch.nn.functional.scaled_dot_product_attention

    def run() -> Any:
        own = keys[:, :, before:]
        found = attend(queries, own, own, is_causal=True, enable_gqa=True)
        if before:
            past = keys[:, :, :before]
            found = found + attend(queries, past, past, enable_gqa=True)
        return found

    return run


def _seconds(torch: Any, run: Callable[[], Any], repeats: int = 5) -> float:
    run()
    torch.cuda.synchronize()
    times = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / 1000)
    return float(statistics.median(times))


def measure(torch: Any) -> dict[str, Any]:
    """Every shape and length with each attention backend that the GPU has."""
    from torch.nn.attention import SDPBackend, sdpa_kernel  # type: ignore[import-not-found]  # noqa: PLC0415

    rows = []
    for name, shape in SHAPES.items():
        layer = _layer(torch, shape)
        width, heads, kv_heads, dim, inner = shape
        parameters = width * (heads + 2 * kv_heads) * dim + heads * dim * width + 3 * width * inner
        x = torch.randn(CHUNK, width, dtype=torch.bfloat16, device="cuda")
        gemm = _seconds(torch, partial(_gemms, torch, layer, x))
        for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):
            for before in BEFORE:
                try:
                    with sdpa_kernel(backend):
                        attention = _seconds(torch, _attention(torch, layer, before), repeats=3)
                except RuntimeError as error:
                    rows.append({"shape": name, "backend": backend.name, "before": before, "error": str(error)[:200]})
                    continue
                pairs = CHUNK * before + CHUNK * (CHUNK + 1) // 2
                rows.append(
                    {
                        "shape": name,
                        "backend": backend.name,
                        "before": before,
                        "gemmSeconds": gemm,
                        "gemmFlop": 2 * CHUNK * parameters,
                        "attentionSeconds": attention,
                        "attentionFlop": 4 * heads * dim * pairs,
                    }
                )
        del layer, x
        torch.cuda.empty_cache()
    return {"rows": rows, "memory": _memory(torch)}


def _memory(torch: Any) -> dict[str, float]:
    """Bytes per second of a copy inside HBM (read and written) and from pinned host memory."""
    size = 4 * 2**30
    first = torch.empty(size, dtype=torch.uint8, device="cuda")
    second = torch.empty_like(first)
    host = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    return {
        "hbmCopy": 2 * size / _seconds(torch, lambda: second.copy_(first)),
        "hostToDevice": size / _seconds(torch, lambda: first.copy_(host, non_blocking=True)),
        "deviceToHost": size / _seconds(torch, lambda: host.copy_(first, non_blocking=True)),
    }


def main(arguments: Sequence[str]) -> int:
    """Measure and write the JSON; 2 for other arguments."""
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    import torch  # type: ignore[import-not-found]  # noqa: PLC0415

    properties = torch.cuda.get_device_properties(0)
    found = {"gpu": properties.name, "totalBytes": properties.total_memory, "torch": torch.__version__}
    Path(arguments[0]).write_text(json.dumps(found | measure(torch), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
