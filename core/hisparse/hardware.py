"""GPUs and node classes, as data with their sources."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from hisparse.rounding import cdiv
from hisparse.units import GIB, MIB

GEN5_X16_BYTES_PER_SECOND: Final = 55_200_000_000
"""Pinned host-to-device copy, one way, measured on an H200: 55.2 GB/s of the 63.0 GB/s of PCIe gen5 x16."""

GEN4_X16_BYTES_PER_SECOND: Final = GEN5_X16_BYTES_PER_SECOND // 2


@dataclass(frozen=True)
class Gpu:
    """One kind of GPU.

    memory_bytes is what CUDA reports as total, not the number on the box. Drivers differ by a few hundredths of a GiB.
    hbm_bytes_per_second is a roofline figure. bf16_flops and fp8_flops are dense tensor-core rates with FP32
    accumulation, without sparsity; fp8_flops is None where the card has no FP8 tensor cores.
    host_bytes_per_second is a usable one-way pinned copy from the host. It is measured on the H200 only; for the others
    it is the raw rate of their link times the share that the H200 reached.
    nvlink_bytes_per_second is one way and reaches every GPU of the node; 0 where there is none, or only a bridge
    between pairs that a node may or may not have.
    products are values of the GPU-feature-discovery label nvidia.com/gpu.product.
    """

    name: str
    memory_bytes: int
    capability: tuple[int, int]
    hbm_bytes_per_second: int
    bf16_flops: int
    fp8_flops: int | None
    host_bytes_per_second: int
    nvlink_bytes_per_second: int
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


def _gib(hundredths: int) -> int:
    """Hundredths of a GiB as a log prints them, rounded up to whole bytes."""
    return cdiv(hundredths * GIB, 100)


GPUS: tuple[Gpu, ...] = (
    Gpu(
        name="h200",
        memory_bytes=_gib(139_81),
        capability=(9, 0),
        hbm_bytes_per_second=4_800_000_000_000,
        bf16_flops=989_000_000_000_000,
        fp8_flops=1_979_000_000_000_000,
        host_bytes_per_second=GEN5_X16_BYTES_PER_SECOND,
        nvlink_bytes_per_second=450_000_000_000,
        products=("NVIDIA-H200",),
        source="139.81 GiB in public vLLM logs (139.80, 150,109,880,320 bytes, on a card with driver 580.159); "
        "host copies measured on that card; rates: data sheet of the H200 SXM",
    ),
    Gpu(
        name="h100",
        memory_bytes=_gib(79_18),
        capability=(9, 0),
        hbm_bytes_per_second=3_350_000_000_000,
        bf16_flops=989_000_000_000_000,
        fp8_flops=1_979_000_000_000_000,
        host_bytes_per_second=GEN5_X16_BYTES_PER_SECOND,
        nvlink_bytes_per_second=450_000_000_000,
        products=("NVIDIA-H100-80GB-HBM3",),
        source="79.18 GiB in public vLLM logs (llm-d-planner); 79.11 with driver 535 (vllm issue 27508); "
        "rates: data sheet of the H100 SXM; host copies estimated, PCIe gen5 x16",
    ),
    Gpu(
        name="a100-80",
        memory_bytes=_gib(79_25),
        capability=(8, 0),
        hbm_bytes_per_second=2_039_000_000_000,
        bf16_flops=312_000_000_000_000,
        fp8_flops=None,
        host_bytes_per_second=GEN4_X16_BYTES_PER_SECOND,
        nvlink_bytes_per_second=300_000_000_000,
        products=("NVIDIA-A100-SXM4-80GB", "NVIDIA-A100-80GB-PCIe"),
        source="79.25 GiB in public vLLM logs; rates: data sheet of the SXM card (the PCIe card has 1,935 GB/s and "
        "NVLink only as a bridge between pairs); host copies estimated, PCIe gen4 x16",
    ),
    Gpu(
        name="l40s",
        memory_bytes=_gib(44_42),
        capability=(8, 9),
        hbm_bytes_per_second=864_000_000_000,
        bf16_flops=362_000_000_000_000,
        fp8_flops=733_000_000_000_000,
        host_bytes_per_second=GEN4_X16_BYTES_PER_SECOND,
        nvlink_bytes_per_second=0,
        products=("NVIDIA-L40S",),
        source="44.42 GiB on 8 L40S in a public log (stepfun-ai/Step-Video-T2V issue 8); rates: data sheet; "
        "host copies estimated, PCIe gen4 x16",
    ),
    Gpu(
        name="b200",
        memory_bytes=_gib(178_35),
        capability=(10, 0),
        hbm_bytes_per_second=7_700_000_000_000,
        bf16_flops=2_250_000_000_000_000,
        fp8_flops=4_500_000_000_000_000,
        host_bytes_per_second=GEN5_X16_BYTES_PER_SECOND,
        nvlink_bytes_per_second=900_000_000_000,
        products=("NVIDIA-B200",),
        source="178.35 GiB in public PyTorch logs (178.36 in some); rates: HGX B200 data sheet, bandwidth as in "
        "ai-dynamo/aiconfigurator (8 TB/s on some boards); host copies estimated, taken as PCIe gen5 x16",
    ),
    Gpu(
        name="h200-nvl",
        memory_bytes=_gib(139_80),
        capability=(9, 0),
        hbm_bytes_per_second=4_800_000_000_000,
        bf16_flops=835_000_000_000_000,
        fp8_flops=1_670_000_000_000_000,
        host_bytes_per_second=GEN5_X16_BYTES_PER_SECOND,
        nvlink_bytes_per_second=0,
        products=("NVIDIA-H200-NVL",),
        source="no CUDA total of a real card found: nvidia-smi reports the H200's 143,771 MiB, so the H200's lower "
        "figure; rates: data sheet; NVLink is a bridge of 2 or 4 cards; host copies estimated, PCIe gen5 x16",
    ),
    Gpu(
        name="h100-nvl",
        memory_bytes=_gib(93_00),
        capability=(9, 0),
        hbm_bytes_per_second=3_900_000_000_000,
        bf16_flops=835_000_000_000_000,
        fp8_flops=1_670_000_000_000_000,
        host_bytes_per_second=GEN5_X16_BYTES_PER_SECOND,
        nvlink_bytes_per_second=0,
        products=("NVIDIA-H100-NVL",),
        source="93.00 GiB in a public log (ali-vilab/VACE issue 56); rates: data sheet; NVLink is a bridge between "
        "pairs; host copies estimated, PCIe gen5 x16",
    ),
    Gpu(
        name="h100-pcie",
        memory_bytes=81_008 * MIB,
        capability=(9, 0),
        hbm_bytes_per_second=2_000_000_000_000,
        bf16_flops=756_000_000_000_000,
        fp8_flops=1_513_000_000_000_000,
        host_bytes_per_second=GEN5_X16_BYTES_PER_SECOND,
        nvlink_bytes_per_second=0,
        products=("NVIDIA-H100-PCIe",),
        source="81,008 MB of total_memory in public PyTorch device properties; rates: data sheet; NVLink is a bridge "
        "between pairs; host copies estimated, PCIe gen5 x16",
    ),
    Gpu(
        name="h20",
        memory_bytes=97_285 * MIB,
        capability=(9, 0),
        hbm_bytes_per_second=4_000_000_000_000,
        bf16_flops=148_000_000_000_000,
        fp8_flops=296_000_000_000_000,
        host_bytes_per_second=GEN5_X16_BYTES_PER_SECOND,
        nvlink_bytes_per_second=450_000_000_000,
        products=("NVIDIA-H20",),
        source="97,285 MB of total_memory in public PyTorch device properties (the 96 GB card, not the H20-3e); "
        "rates: published specifications; host copies estimated, PCIe gen5 x16",
    ),
    Gpu(
        name="a100-40",
        memory_bytes=_gib(39_38),
        capability=(8, 0),
        hbm_bytes_per_second=1_555_000_000_000,
        bf16_flops=312_000_000_000_000,
        fp8_flops=None,
        host_bytes_per_second=GEN4_X16_BYTES_PER_SECOND,
        nvlink_bytes_per_second=300_000_000_000,
        products=("NVIDIA-A100-SXM4-40GB", "NVIDIA-A100-PCIE-40GB"),
        source="39.38 to 39.56 GiB in public PyTorch logs, the lowest taken; rates: data sheet of the SXM card (the "
        "PCIe card has NVLink only as a bridge between pairs); host copies estimated, PCIe gen4 x16",
    ),
    Gpu(
        name="rtx-pro-6000",
        memory_bytes=_gib(94_97),
        capability=(12, 0),
        hbm_bytes_per_second=1_597_000_000_000,
        bf16_flops=467_000_000_000_000,
        fp8_flops=935_000_000_000_000,
        host_bytes_per_second=GEN5_X16_BYTES_PER_SECOND,
        nvlink_bytes_per_second=0,
        products=(
            "NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition",
            "NVIDIA-RTX-PRO-6000-Blackwell-Workstation-Edition",
        ),
        source="94.97 GiB in a public CUDA log (antirez/ds4 issue 431); 467.8 and 935.6 TFLOPS dense at 2,430 MHz "
        "(ai-dynamo/aiconfigurator); the lower of two published bandwidths (Workstation Edition: 1,792 GB/s); "
        "host copies estimated, PCIe gen5 x16",
    ),
    Gpu(
        name="rtx-5090",
        memory_bytes=_gib(31_36),
        capability=(12, 0),
        hbm_bytes_per_second=1_792_000_000_000,
        bf16_flops=209_000_000_000_000,
        fp8_flops=419_000_000_000_000,
        host_bytes_per_second=GEN5_X16_BYTES_PER_SECOND,
        nvlink_bytes_per_second=0,
        products=("NVIDIA-GeForce-RTX-5090",),
        source="31.36 GiB in a public log (TrajectoryCrafter issue 20; 31.37 in Wan-Video/Wan2.1 issue 465); rates: "
        "RTX Blackwell white paper; host copies estimated, PCIe gen5 x16",
    ),
    Gpu(
        name="rtx-4090",
        memory_bytes=_gib(23_52),
        capability=(8, 9),
        hbm_bytes_per_second=1_008_000_000_000,
        bf16_flops=165_000_000_000_000,
        fp8_flops=330_000_000_000_000,
        host_bytes_per_second=GEN4_X16_BYTES_PER_SECOND,
        nvlink_bytes_per_second=0,
        products=("NVIDIA-GeForce-RTX-4090",),
        source="23.52 GiB in a public log (Soul-AILab/SoulX-FlashTalk issue 5); 23.64 with older drivers "
        "(deepseek-ai/DeepSeek-V3 issue 205); rates: Ada white paper; host copies estimated, PCIe gen4 x16",
    ),
    Gpu(
        name="rtx-3090",
        memory_bytes=_gib(23_58),
        capability=(8, 6),
        hbm_bytes_per_second=936_000_000_000,
        bf16_flops=71_000_000_000_000,
        fp8_flops=None,
        host_bytes_per_second=GEN4_X16_BYTES_PER_SECOND,
        nvlink_bytes_per_second=0,
        products=("NVIDIA-GeForce-RTX-3090",),
        source="23.58 GiB in a public vLLM log (vllm pull request 14447); rates: Ampere GA102 white paper; NVLink is a "
        "bridge between pairs; host copies estimated, PCIe gen4 x16",
    ),
    Gpu(
        name="l4",
        memory_bytes=_gib(21_95),
        capability=(8, 9),
        hbm_bytes_per_second=300_000_000_000,
        bf16_flops=121_000_000_000_000,
        fp8_flops=242_000_000_000_000,
        host_bytes_per_second=GEN4_X16_BYTES_PER_SECOND,
        nvlink_bytes_per_second=0,
        products=("NVIDIA-L4",),
        source="22.03 GiB in a public log (ArcInstitute/evo2 issue 190); 21.95 to 21.98 in logs of 24 GB cards with "
        "ECC that do not name the card, the lowest taken; rates: data sheet; host copies estimated, PCIe gen4 x16",
    ),
    Gpu(
        name="a10g",
        memory_bytes=_gib(21_98),
        capability=(8, 6),
        hbm_bytes_per_second=600_000_000_000,
        bf16_flops=70_000_000_000_000,
        fp8_flops=None,
        host_bytes_per_second=GEN4_X16_BYTES_PER_SECOND,
        nvlink_bytes_per_second=0,
        products=("NVIDIA-A10G",),
        source="21.98 GiB in a public log of a g5.12xlarge (22.06 in other PyTorch device properties); rates: data "
        "sheet of the A10G; host copies estimated, PCIe gen4 x16",
    ),
)

_IDLE_WORDS: Final = frozenset({"nvidia", "geforce", "tesla", "hbm3", "hbm3e", "gb"})
_LEAD = re.compile(r"^rtx")
_TAIL = re.compile(r"(?:sxm[0-9]?|(?<=[0-9])gb)$")


@lru_cache(maxsize=64)
def gpu_named(name: str) -> Gpu | None:
    """The GPU that a person calls `name`: a short name or a product, in any case.

    Spaces, dashes, the maker's words, RTX, SXM and GB do not matter. None where no GPU, or more than one, is meant.
    """
    wanted = _key(name)
    return next((gpu for gpu in GPUS if wanted in (_key(gpu.name), *map(_key, gpu.products))), None)


def near_gpus(name: str) -> tuple[str, ...]:
    """Names of known GPUs that `name` may mean, the likeliest first: all that begin so, else the nearest as texts."""
    wanted = _key(name)
    names = {_key(gpu.name): gpu.name for gpu in GPUS}
    longer = tuple(known for key, known in names.items() if wanted and key.startswith(wanted))
    return longer or tuple(names[key] for key in difflib.get_close_matches(wanted, names, n=3, cutoff=0.5))


def gpu_of_product(product: str) -> Gpu | None:
    """The GPU behind a nvidia.com/gpu.product label; None where we know nothing about it."""
    return next((gpu for gpu in GPUS if product in gpu.products), None)


def format_memory(gpu: Gpu) -> str:
    """Total memory as CUDA reports it, e.g. "139.81 GiB"."""
    hundredths = gpu.memory_bytes * 100 // GIB
    return f"{hundredths // 100}.{hundredths % 100:02d} GiB"


def _key(name: str) -> str:
    """What is left of a name without the parts that people write or leave out."""
    words = (word for word in re.split(r"[^a-z0-9]+", name.lower()) if word not in _IDLE_WORDS)
    return "".join(_TAIL.sub("", _LEAD.sub("", word)) for word in words)
