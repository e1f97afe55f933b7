"""Layers of pipeline ranks."""

from __future__ import annotations


def pipeline_split(layers: int, ranks: int) -> tuple[int, ...]:
    """Layers of each pipeline rank: what does not divide goes to the ranks before the last, from behind.

    Source: vLLM 0.33, distributed/utils.py, get_pp_indices.
    """
    each, left = divmod(layers, ranks)
    return tuple(each + (ranks - 1 - left <= rank < ranks - 1) for rank in range(ranks))
