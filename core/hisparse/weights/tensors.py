"""Tensors of a checkpoint and the parameters that they add up to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum


class Part(StrEnum):
    """What a tensor belongs to."""

    EMBEDDING = "embedding"
    ATTENTION = "attention"
    DENSE_MLP = "dense MLP"
    EXPERTS = "experts"
    SHARED_EXPERTS = "shared experts"
    OTHER = "other"
    VISION = "vision"


class Split(StrEnum):
    """How tensor-parallel ranks share a tensor.

    HEADS are divided by whole KV heads or state groups and replicated once ranks outnumber them.
    """

    DIVIDED = "divided"
    HEADS = "heads"
    REPLICATED = "replicated"
    VOCABULARY = "vocabulary"
    EXPERTS = "experts"
    SHARED_EXPERTS = "shared experts"


@dataclass(frozen=True)
class Tensor:
    """One weight of `rows` outputs and `columns` inputs, `copies` times over (experts).

    name is the module inside its layer, as checkpoints and quantization configs spell it.
    by_columns: ranks that divide the matrix divide its inputs, not its outputs.
    linear: a quantization method may apply. bias: one more element per row, at the model's dtype.
    stored: False for what the engine holds beside the checkpoint. dequantized: held a second time at the model's
    dtype where it is quantized.
    """

    part: Part
    name: str
    rows: int
    columns: int = 1
    copies: int = 1
    split: Split = Split.DIVIDED
    heads: int = 1
    by_columns: bool = False
    linear: bool = True
    bias: bool = False
    stored: bool = True
    dequantized: bool = False

    @property
    def elements(self) -> int:
        """Parameters, all copies."""
        return self.copies * self.rows * (self.columns + self.bias)


def norm(name: str, size: int) -> Tensor:
    """A vector that every rank holds whole."""
    return Tensor(Part.OTHER, name, size, split=Split.REPLICATED, linear=False)


@dataclass(frozen=True)
class Parameters:
    """Parameters by part.

    total is the checkpoint without draft; embedding counts the input table and an output matrix of its own.
    other: norms, routers, indexers. active take part in one token's forward: the top-k routed experts and all else
    but the input table (where it is tied, it is the output matrix and counts) and the vision tower.
    draft: layers for speculative decoding. vision is 0 where the tower is not known.
    """

    total: int
    embedding: int
    attention: int
    dense_mlp: int
    experts: int
    shared_experts: int
    other: int
    vision: int
    active: int
    draft: int


@dataclass(frozen=True)
class Weights:
    """Every tensor of a checkpoint, by where a pipeline puts it.

    first and last stand on the first and last pipeline rank, the input table before all. kinds are the tensors of
    each kind of layer; layers and drafts name the kind of every layer by its place in kinds.
    top_k experts of each MoE layer see a token.
    """

    first: tuple[Tensor, ...]
    kinds: tuple[tuple[Tensor, ...], ...]
    layers: tuple[int, ...]
    last: tuple[Tensor, ...]
    drafts: tuple[int, ...]
    tied: bool
    top_k: int

    def width(self, part: Part) -> int:
        """The widest MLP of that part in any layer; 0 where none has one."""
        down = (one for tensors in self.kinds for one in tensors if one.part is part and one.by_columns)
        return max((tensor.columns for tensor in down), default=0)

    @property
    def parameters(self) -> Parameters:
        """The counts of what the checkpoint stores."""
        counts = dict.fromkeys(Part, 0)
        idle = 0
        for times, tensor in self._backbone():
            if tensor.stored:
                counts[tensor.part] += times * tensor.elements
                if tensor.part is Part.EXPERTS:
                    idle += times * (tensor.elements * max(0, tensor.copies - self.top_k) // tensor.copies)
        total = sum(counts.values())
        table = 0 if self.tied else self.first[0].elements
        return Parameters(
            total=total,
            embedding=counts[Part.EMBEDDING],
            attention=counts[Part.ATTENTION],
            dense_mlp=counts[Part.DENSE_MLP],
            experts=counts[Part.EXPERTS],
            shared_experts=counts[Part.SHARED_EXPERTS],
            other=counts[Part.OTHER],
            vision=counts[Part.VISION],
            active=total - idle - table - counts[Part.VISION],
            draft=sum(tensor.elements for kind in self.drafts for tensor in self.kinds[kind] if tensor.stored),
        )

    def _backbone(self) -> Iterator[tuple[int, Tensor]]:
        """Every tensor but those of draft layers, with how often it is there."""
        for tensor in (*self.first, *self.last):
            yield 1, tensor
        for kind, tensors in enumerate(self.kinds):
            times = self.layers.count(kind)
            for tensor in tensors:
                yield times, tensor
