"""GPUs and node classes, as data with their sources."""

from __future__ import annotations

from dataclasses import dataclass

from hisparse.units import GIB


@dataclass(frozen=True)
class Gpu:
    """One kind of GPU.

    memory_bytes is what CUDA reports as total, not the number on the box.
    hbm_bytes_per_second is a roofline figure.
    products are values of the GPU-feature-discovery label nvidia.com/gpu.product.
    """

    name: str
    memory_bytes: int
    capability: tuple[int, int]
    hbm_bytes_per_second: int
    products: tuple[str, ...]
    source: str


@dataclass(frozen=True)
class NodeClass:
    """What nodes of one kind offer to one replica.

    host_memory_bytes is allocatable memory; None where nobody said (then host memory is not judged).
    """

    gpu: Gpu
    gpus: int
    host_memory_bytes: int | None
    product: str


GPUS: tuple[Gpu, ...] = (
    Gpu(
        name="h200",
        memory_bytes=-(-13_981 * GIB // 100),
        capability=(9, 0),
        hbm_bytes_per_second=4_800_000_000_000,
        products=("NVIDIA-H200", "NVIDIA-H200-NVL"),
        source="139.81 GiB in public vLLM logs (139.80 with driver 580.159); host reads measured; HBM: data sheet",
    ),
    Gpu(
        name="h100",
        memory_bytes=-(-7_918 * GIB // 100),
        capability=(9, 0),
        hbm_bytes_per_second=3_350_000_000_000,
        products=("NVIDIA-H100-80GB-HBM3", "NVIDIA-H100-PCIe"),
        source="79.18 GiB in a public vLLM log; bandwidth from the data sheet",
    ),
    Gpu(
        name="a100-80",
        memory_bytes=-(-7_925 * GIB // 100),
        capability=(8, 0),
        hbm_bytes_per_second=2_039_000_000_000,
        products=("NVIDIA-A100-SXM4-80GB", "NVIDIA-A100-80GB-PCIe"),
        source="79.25 GiB in public vLLM logs; bandwidth from the data sheet; PCIe gen4 x16",
    ),
    Gpu(
        name="l40s",
        memory_bytes=-(-4_439 * GIB // 100),
        capability=(8, 9),
        hbm_bytes_per_second=864_000_000_000,
        products=("NVIDIA-L40S",),
        source="data sheet (48 GB with ECC); PCIe gen4 x16",
    ),
)


def gpu_named(name: str) -> Gpu | None:
    """The GPU that a person calls `name` (case and a leading NVIDIA do not matter)."""
    wanted = name.lower().replace("nvidia", "").strip("- ")
    return next((gpu for gpu in GPUS if gpu.name == wanted or f"nvidia-{wanted}" in _lowered(gpu)), None)


def gpu_of_product(product: str) -> Gpu | None:
    """The GPU behind a nvidia.com/gpu.product label; None where we know nothing about it."""
    return next((gpu for gpu in GPUS if product in gpu.products), None)


def format_memory(gpu: Gpu) -> str:
    """Total memory as CUDA reports it, e.g. "139.81 GiB"."""
    hundredths = gpu.memory_bytes * 100 // GIB
    return f"{hundredths // 100}.{hundredths % 100:02d} GiB"


def _lowered(gpu: Gpu) -> tuple[str, ...]:
    return tuple(product.lower() for product in gpu.products)
