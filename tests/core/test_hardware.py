"""GPUs: every label and every spelling means one card, and the figures are in the order that physics gives them."""

from __future__ import annotations

from collections import Counter

import pytest

from hisparse.hardware import GPUS, Gpu, format_memory, gpu_named, gpu_of_product, near_gpus
from hisparse.units import GIB

each_gpu = pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)

NAMES = [
    "h200",
    "h200-nvl",
    "h100",
    "h100-nvl",
    "h100-pcie",
    "h20",
    "b200",
    "a100-40",
    "a100-80",
    "l40s",
    "l4",
    "a10g",
    "rtx-3090",
    "rtx-4090",
    "rtx-5090",
    "rtx-pro-6000",
]


def named(name: str) -> Gpu:
    found = gpu_named(name)
    assert found is not None, name
    return found


def test_the_table_has_the_cards_that_people_serve_on() -> None:
    assert sorted(gpu.name for gpu in GPUS) == sorted(NAMES)


def test_a_product_belongs_to_one_gpu() -> None:
    products = Counter(product for gpu in GPUS for product in gpu.products)
    assert [product for product, count in products.items() if count > 1] == []


@each_gpu
def test_a_gpu_has_a_source_and_is_found_by_its_name_and_products(gpu: Gpu) -> None:
    assert "estimated" in gpu.source or gpu.name == "h200", "only one card's host copies were measured"
    assert gpu_named(gpu.name) is gpu
    assert gpu.products
    for product in gpu.products:
        assert gpu_of_product(product) is gpu
        assert gpu_named(product) is gpu
        assert " " not in product, "a label value has no spaces"


@each_gpu
def test_figures_are_in_the_order_that_physics_gives_them(gpu: Gpu) -> None:
    assert gpu.host_bytes_per_second < gpu.hbm_bytes_per_second
    assert gpu.nvlink_bytes_per_second < gpu.hbm_bytes_per_second
    assert gpu.nvlink_bytes_per_second == 0 or gpu.nvlink_bytes_per_second > gpu.host_bytes_per_second
    # FP8 tensor cores came with Ada and Hopper, and run at twice the rate of BF16
    assert (gpu.fp8_flops is not None) is (gpu.capability >= (8, 9))
    if gpu.fp8_flops is not None:
        assert gpu.fp8_flops / gpu.bf16_flops == pytest.approx(2, rel=0.03)
    # what a card can compute per byte that it reads, over all generations
    assert 30 < gpu.bf16_flops / gpu.hbm_bytes_per_second < 450


@pytest.mark.parametrize(
    ("name", "box"),
    [
        ("h200", 141),
        ("h100", 80),
        ("a100-40", 40),
        ("l40s", 48),
        ("rtx-4090", 24),
        ("l4", 24),
        ("b200", 192),
    ],
)
def test_cuda_reports_less_than_the_box_says(name: str, box: int) -> None:
    assert 0.85 * box * GIB < named(name).memory_bytes < box * GIB


@pytest.mark.parametrize(
    "faster", [("h200", "h100"), ("h100", "h100-pcie"), ("b200", "h200"), ("a100-80", "a100-40"), ("l40s", "l4")]
)
def test_the_larger_sibling_reads_its_memory_faster(faster: tuple[str, str]) -> None:
    first, second = (named(name) for name in faster)
    assert first.hbm_bytes_per_second > second.hbm_bytes_per_second


def test_host_copies_are_the_measured_share_of_each_link() -> None:
    rate = {gpu.name: gpu.host_bytes_per_second for gpu in GPUS}
    assert rate["h200"] == rate["h100"] == 2 * rate["a100-80"] == 55_200_000_000


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("RTX 4090", "rtx-4090"),
        ("rtx4090", "rtx-4090"),
        ("4090", "rtx-4090"),
        ("GeForce RTX 4090", "rtx-4090"),
        ("A100-40", "a100-40"),
        ("a100-40gb", "a100-40"),
        ("A100 SXM4 40GB", "a100-40"),
        ("A100 PCIe 40 GB", "a100-40"),
        ("a100 sxm 80gb", "a100-80"),
        ("H200 SXM", "h200"),
        ("NVIDIA H200", "h200"),
        ("H200 NVL", "h200-nvl"),
        ("H100 80GB", "h100"),
        ("h100 pcie", "h100-pcie"),
        ("RTX PRO 6000", "rtx-pro-6000"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000"),
        ("L40s", "l40s"),
    ],
)
def test_spelling_does_not_matter(said: str, meant: str) -> None:
    assert named(said).name == meant


@pytest.mark.parametrize("said", ["", "nvidia", "a100", "A100 SXM", "h300", "l40", "mi300x", "rtx"])
def test_what_means_no_gpu_or_several_is_not_guessed(said: str) -> None:
    assert gpu_named(said) is None


@pytest.mark.parametrize(
    ("said", "near"),
    [
        ("a100", ("a100-80", "a100-40")),
        ("A10", ("a100-80", "a100-40", "a10g")),
        ("l40", ("l40s",)),
        ("h10", ("h100", "h100-nvl", "h100-pcie")),
        ("", ()),
        ("something else", ()),
    ],
)
def test_near_gpus_begin_with_what_was_said(said: str, near: tuple[str, ...]) -> None:
    assert near_gpus(said) == near


def test_a_misspelt_gpu_has_near_ones() -> None:
    assert near_gpus("h300")[0] in {"h100", "h200"}
    assert "rtx-4090" in near_gpus("rtx-4070")


def test_memory_is_shown_as_cuda_reports_it() -> None:
    assert format_memory(named("h200")) == "139.81 GiB"
    assert format_memory(named("l40s")) == "44.42 GiB"
    assert format_memory(named("h20")) == "95.00 GiB"
