"""Tensors of the image encoders whose shapes are known."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from hisparse.errors import SpecError
from hisparse.weights.fields import WeightFields
from hisparse.weights.tensors import Part, Split, Tensor


def vision_tower(fields: WeightFields, text: int) -> Iterator[Tensor]:
    """The image encoder and its projector, where the kind of tower is known; nothing where it is not."""
    config = fields.part("vision_config")
    if config is None:
        return
    tower = WeightFields(config)
    count = _VISION.get(str(config.get("model_type")))
    if count is None:
        return
    try:
        matrices, rest = count(tower, text)
    except SpecError:
        return
    yield Tensor(Part.VISION, "vision_tower", matrices, linear=False)
    yield Tensor(Part.VISION, "vision_tower.embeddings", rest, split=Split.REPLICATED, linear=False)


def _pixtral(tower: WeightFields, text: int) -> tuple[int, int]:
    """(divided, replicated) parameters of Pixtral's tower and Mistral 3's patch merger."""
    hidden, width, depth = _tower_size(tower)
    patch = 3 * tower.count("patch_size") ** 2 * hidden
    merged = tower.count("spatial_merge_size", default=2) ** 2
    projector = merged * hidden * hidden + hidden * text + text * text + hidden
    return depth * (4 * hidden * hidden + 3 * hidden * width), depth * 2 * hidden + patch + hidden + projector


def _siglip(tower: WeightFields, text: int) -> tuple[int, int]:
    """(divided, replicated) parameters of a SigLIP tower and Gemma 3's projector."""
    hidden, width, depth = _tower_size(tower)
    side = tower.count("patch_size")
    positions = (tower.count("image_size") // side) ** 2
    biased = 4 * hidden * hidden + 2 * hidden * width + 9 * hidden + width
    rest = (3 * side**2 + 1) * hidden + positions * hidden + 2 * hidden
    return depth * biased, rest + hidden * text + hidden


def _gemma4(tower: WeightFields, text: int) -> tuple[int, int]:
    """(divided, replicated) parameters of Gemma 4's tower: gated MLP, two tables of positions."""
    hidden, width, depth = _tower_size(tower)
    patch = 3 * tower.count("patch_size") ** 2 * hidden
    positions = 2 * tower.count("position_embedding_size") * hidden
    return depth * (4 * hidden * hidden + 3 * hidden * width), depth * 4 * hidden + patch + positions + hidden * text


def _qwen(tower: WeightFields, text: int) -> tuple[int, int]:
    """(divided, replicated) parameters of Qwen3-VL's tower, its merger and one more merger per deepstack layer."""
    hidden, width = tower.count("hidden_size"), tower.count("intermediate_size")
    depth = tower.count("depth")
    merged = tower.count("spatial_merge_size") ** 2 * hidden
    stacked = tower.get("deepstack_visual_indexes")
    more = len(stacked) if isinstance(stacked, Sequence) else 0
    norms = 2 * hidden + more * 2 * merged
    patch = 3 * tower.count("temporal_patch_size") * tower.count("patch_size") ** 2 * hidden
    out = tower.count("out_hidden_size", default=text) or text
    biased = 4 * hidden * hidden + 2 * hidden * width + 9 * hidden + width
    rest = patch + hidden + tower.count("num_position_embeddings") * hidden
    return depth * biased + (1 + more) * (merged + 1) * (merged + out), rest + norms


def _tower_size(tower: WeightFields) -> tuple[int, int, int]:
    """(hidden size, MLP width, layers)."""
    return tower.count("hidden_size"), tower.count("intermediate_size"), tower.count("num_hidden_layers")


_VISION: Final[Mapping[str, Callable[[WeightFields, int], tuple[int, int]]]] = MappingProxyType(
    {
        "pixtral": _pixtral,
        "siglip_vision_model": _siglip,
        "gemma4_vision": _gemma4,
        "qwen3_vl": _qwen,
        "qwen3_vl_moe": _qwen,
        "qwen3_5": _qwen,
        "qwen3_5_moe": _qwen,
    }
)
