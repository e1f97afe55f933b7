"""Pages of one layer, tables of layers that share blocks, and how large a block of the pool is.

Source: vLLM 0.33, v1/core/kv_cache_planning.py (get_global_kv_cache_groups and what it calls).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import lcm

from hisparse.accounting import Accounting
from hisparse.rounding import cdiv, round_up


class Reach(StrEnum):
    """How far back the layers of a group look, which decides how many blocks a request keeps."""

    FULL = "full"
    WINDOW = "window"
    CHUNK = "chunk"
    STATE = "state"


@dataclass(frozen=True)
class Page:
    """One cache of one layer with its block: what vLLM calls a KV cache spec.

    One row of row_bytes covers `pool` tokens; a state's row is the state. tokens is the window or the chunk, 0
    otherwise; states is how many states a request keeps. padded is bytes that the page is filled up to. fixed pages
    cannot be. stride: where unlike pages share a block, blocks are a multiple of it apart.
    """

    rank: int
    reach: Reach
    row_bytes: int
    block_tokens: int
    tokens: int = 0
    states: int = 0
    pool: int = 1
    padded: int = 0
    fixed: bool = False
    stride: int = 1

    @property
    def bytes(self) -> int:
        """Bytes of one block, padding included."""
        return max(self.padded, self.own_bytes)

    @property
    def own_bytes(self) -> int:
        """Bytes of one block without padding; a state's block is the state."""
        if self.reach is Reach.STATE:
            return self.row_bytes
        return self.row_bytes * self.block_tokens // self.pool

    @property
    def kind(self) -> tuple[object, ...]:
        """Pages of one kind may share a group."""
        return (self.reach, self.tokens, self.row_bytes, self.block_tokens, self.pool, self.bytes)


@dataclass(frozen=True)
class Table:
    """Pages that share a block table, over all pipeline ranks. size is pages of a full group, 0 where any number is."""

    pages: tuple[Page, ...]
    size: int

    @property
    def padding(self) -> int:
        """Layers that the group size adds."""
        return max(0, self.size - len(self.pages))

    def on(self, rank: int) -> tuple[tuple[int, Page], ...]:
        """Pages on one pipeline rank: each that is unlike the others, and how many layers have it."""
        counts = Counter(page for page in self.pages if page.rank == rank)
        return tuple((count, page) for page, count in counts.items())

    def bytes(self, rank: int) -> int:
        """Bytes that one of its blocks needs on that rank."""
        return sum(count * page.bytes for count, page in self.on(rank))


def strides(pages: Sequence[Page], pipeline: int) -> list[int]:
    """What blocks are a multiple of on each pipeline rank; 1 where no unlike pages share them."""
    if not _shares_blocks(pages):
        return [1] * pipeline
    return [lcm(*(page.stride for page in pages if page.rank == rank)) for rank in range(pipeline)]


def block_sizes(tables: Sequence[Table], steps: Sequence[int]) -> list[int]:
    """Bytes of one block of the pool on each pipeline rank: those of the largest table, in whole strides."""
    return [round_up(max((table.bytes(rank) for table in tables), default=0), step) for rank, step in enumerate(steps)]


def tables_of(pages: Sequence[Page], rules: Accounting) -> list[Table]:
    """The block tables of all ranks: every rank has the same ones, whichever layers it holds."""
    if _needs_same_slots(pages):
        return [Table(tuple(pages), len(pages))]
    equal = None if _shares_blocks(pages) else _equal_pages(pages)
    if equal is None:
        return _packed(pages)
    buckets: dict[tuple[object, ...], list[Page]] = {}
    for page in equal:
        buckets.setdefault(page.kind, []).append(page)
    size = _group_size([len(bucket) for bucket in buckets.values()], rules)
    return [
        Table(tuple(bucket[first :: cdiv(len(bucket), size)]), size)
        for bucket in buckets.values()
        for first in range(cdiv(len(bucket), size))
    ]


def _shares_blocks(pages: Sequence[Page]) -> bool:
    """Whether unlike pages lie side by side in a block (block-outermost layout), which rings of pooled keys ask for."""
    return any(page.pool > 1 for page in pages)


def _needs_same_slots(pages: Sequence[Page]) -> bool:
    """Whether all layers need the same tokens, so that one table serves them whatever their sizes."""
    first = pages[0]
    if first.reach is Reach.STATE:
        return len({(page.reach, page.bytes, page.states) for page in pages}) == 1
    return len({(page.reach, page.tokens, page.block_tokens) for page in pages}) == 1


def _group_size(counts: list[int], rules: Accounting) -> int:
    """Layers per group: the smallest count, or the largest where they are nearly even (less padding)."""
    smallest, largest = min(counts), max(counts)
    if rules.even_groups is not None and largest < smallest * rules.even_groups:
        return largest
    return smallest


def _equal_pages(pages: Sequence[Page]) -> list[Page] | None:
    """Pages of one size: smaller ones get longer blocks, or padding where that does not divide; None where a latent
    page cannot be either.
    """
    largest = max(page.bytes for page in pages)
    found = []
    for page in pages:
        if page.bytes == largest:
            found.append(page)
        elif page.reach is not Reach.STATE and largest % page.bytes == 0:
            found.append(replace(page, block_tokens=page.block_tokens * (largest // page.bytes)))
        elif page.fixed:
            return None
        else:
            found.append(replace(page, padded=largest))
    return found


def _packed(pages: Sequence[Page]) -> list[Table]:
    """Groups of unlike pages side by side in one block (block-outermost layout): whole runs of full attention, and as
    many states as the block that they need has room for.
    """
    buckets: dict[tuple[object, ...], list[Page]] = {}
    for page in pages:
        key = (page.reach, page.tokens, page.bytes) if page.reach is Reach.STATE else (page.reach, page.tokens)
        buckets.setdefault(key, []).append(page)
    whole = [bucket for bucket in buckets.values() if bucket[0].reach is not Reach.STATE]
    repeats = _repeats(list(buckets.values()))
    room = max((_widest(bucket, _splits(bucket, repeats)) for bucket in whole), default=0)
    tables = []
    for bucket in buckets.values():
        splits = _splits(bucket, repeats)
        if bucket[0].reach is Reach.STATE:
            splits = max(splits, cdiv(len(bucket), max(1, room // bucket[0].bytes)))
        tables += [Table(part, 0) for part in _parts(bucket, splits)]
    return tables


def _parts(bucket: list[Page], splits: int) -> list[tuple[Page, ...]]:
    """The bucket in `splits` parts, each with the same number of pages of each size."""
    if splits == 1:
        return [tuple(bucket)]
    sizes: dict[int, list[Page]] = {}
    for page in bucket:
        sizes.setdefault(page.bytes, []).append(page)
    repeats = list(zip(*sizes.values(), strict=False))
    return [tuple(page for repeat in repeats[first::splits] for page in repeat) for first in range(splits)]


def _per_size(bucket: list[Page]) -> dict[int, int]:
    counts: dict[int, int] = {}
    for page in bucket:
        counts[page.bytes] = counts.get(page.bytes, 0) + 1
    return counts


def _repeats(buckets: list[list[Page]]) -> int | None:
    """Pattern repeats per group; None where no bucket mixes page sizes evenly, so that nothing has to be packed."""
    even = [_per_size(bucket) for bucket in buckets]
    even = [counts for counts in even if len(set(counts.values())) == 1]
    floor = max((max(counts.values()) for counts in even if len(counts) > 1), default=0)
    if not floor:
        return None
    counts = [max(one.values()) for one in even]
    # the size with the least padding; the larger one where two are alike
    return min(range(floor, max(floor, *counts) + 1), key=lambda size: (sum(-count % size for count in counts), -size))


def _splits(bucket: list[Page], repeats: int | None) -> int:
    counts = _per_size(bucket)
    even = len(set(counts.values())) == 1
    return cdiv(max(counts.values()), repeats) if even and repeats else 1


def _widest(bucket: list[Page], splits: int) -> int:
    return sum(cdiv(count, splits) * size for size, count in _per_size(bucket).items())
