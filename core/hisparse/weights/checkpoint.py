"""A checkpoint as the planner asks for it: its size, and what the fullest GPU of a layout holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from hisparse.pipeline import pipeline_split
from hisparse.rounding import cdiv
from hisparse.weights.formats import Precision, WeightFormat, weight_format
from hisparse.weights.ranks import Parallel, held_bytes
from hisparse.weights.reader import read_weights
from hisparse.weights.tensors import Parameters, Part, Tensor, Weights


@dataclass(frozen=True)
class Lot:
    """Tensors that are alike in every layer that has them. precision is None where they keep the model's dtype."""

    tensor: Tensor
    precision: Precision | None

    def file_bytes(self, dtype_bytes: int) -> int:
        """Bytes of one such tensor, all its copies, in the checkpoint."""
        tensor = self.tensor
        if not tensor.stored:
            return 0
        matrix = (self.precision or Precision(8 * dtype_bytes)).matrix_bytes(tensor.rows, tensor.columns)
        return tensor.copies * (matrix + tensor.bias * tensor.rows * dtype_bytes)


@dataclass(frozen=True)
class Stock:
    """Where the lots of a checkpoint are, each named by its place in lots.

    kinds are the lots of each kind of layer: alike in shape and in format. layers and drafts name the kind of every
    layer by its place in kinds. first and last stand on the first and last pipeline rank.
    """

    lots: tuple[Lot, ...]
    first: tuple[int, ...]
    kinds: tuple[tuple[int, ...], ...]
    layers: tuple[int, ...]
    last: tuple[int, ...]
    drafts: tuple[int, ...]


@dataclass(frozen=True)
class Checkpoint:
    """A model's weights: alike tensors counted together, in their format.

    file_bytes is the counted size of the checkpoint, draft layers included; None where the format is not known.
    readings are the sizes that its files may have: draft layers may be left out, and a tied output matrix may be
    stored all the same (Qwen3-0.6B); a config.json does not say.
    expert_share is the part of its bytes that routed experts take, those of draft layers included; in a format that is
    not known, of its parameters. dense_width and expert_width are those of the widest MLP; 0 where there is none.
    """

    parameters: Parameters
    format: WeightFormat
    file_bytes: int | None
    expert_share: Fraction
    dense_width: int
    expert_width: int
    readings: tuple[int, ...] = field(repr=False)
    stock: Stock = field(repr=False, hash=False)

    def on_one_gpu(self, parallel: Parallel, *, total_bytes: int | None = None, draft: bool = False) -> int | None:
        """Bytes of weights on the GPU that holds the most; draft: with the layers for speculative decoding.

        total_bytes is the size of the checkpoint's files (total_size in model.safetensors.index.json): where the
        count differs from it, every tensor is scaled by the same ratio. A format that is not known is then taken as
        one width for all tensors; without total_bytes it gives None. More stages than layers give None as well.
        """
        if (not self.format.known and total_bytes is None) or parallel.pipeline > len(self.stock.layers):
            return None
        most = max(self._stages(parallel, draft=draft))
        if total_bytes is None:
            return most
        return cdiv(most * total_bytes, min(self.readings, key=lambda reading: abs(total_bytes - reading)))

    def _stages(self, parallel: Parallel, *, draft: bool) -> list[int]:
        """Bytes on one GPU of each pipeline rank."""
        stock = self.stock
        held = [held_bytes(lot.tensor, lot.precision, self.format.dtype_bytes, parallel) for lot in stock.lots]
        kinds = [sum(held[lot] for lot in kind) for kind in stock.kinds]
        stages = []
        start = 0
        for count in pipeline_split(len(stock.layers), parallel.pipeline):
            stages.append(sum(kinds[kind] for kind in stock.layers[start : start + count]))
            start += count
        stages[0] += sum(held[lot] for lot in stock.first)
        # a tied output matrix is the input table itself, and a second copy of it on another rank
        stages[-1] += sum(held[lot] for lot in stock.last if stock.lots[lot].tensor.stored or parallel.pipeline > 1)
        if draft:
            stages[-1] += sum(kinds[kind] for kind in stock.drafts)
        return stages


def read_checkpoint(config: Mapping[str, Any]) -> Checkpoint | None:
    """The weights of a Hugging Face config.json; None where the architecture or a needed field is not known."""
    weights = read_weights(config)
    if weights is None:
        return None
    form = weight_format(config)
    stock = _stock(weights, form)
    files = [lot.file_bytes(form.dtype_bytes) for lot in stock.lots]
    kinds = [sum(files[lot] for lot in kind) for kind in stock.kinds]
    drafts = sum(kinds[kind] for kind in stock.drafts)
    routed = [sum(files[lot] for lot in kind if stock.lots[lot].tensor.part is Part.EXPERTS) for kind in stock.kinds]
    counted = (
        sum(kinds[kind] for kind in stock.layers) + drafts + sum(files[lot] for lot in (*stock.first, *stock.last))
    )
    table = weights.first[0].elements * form.dtype_bytes if weights.tied else 0
    return Checkpoint(
        parameters=weights.parameters,
        format=form,
        file_bytes=counted if form.known else None,
        expert_share=Fraction(sum(routed[kind] for kind in (*stock.layers, *stock.drafts)), counted),
        dense_width=weights.width(Part.DENSE_MLP),
        expert_width=weights.width(Part.EXPERTS),
        readings=(counted, counted + table, counted - drafts, counted - drafts + table),
        stock=stock,
    )


def _stock(weights: Weights, form: WeightFormat) -> Stock:
    """Sorts every tensor into its lot: what a quantization config says may differ from layer to layer."""
    lots: dict[Lot, int] = {}
    kinds: dict[tuple[int, tuple[Precision | None, ...]], int] = {}
    sorted_kinds: list[tuple[int, ...]] = []

    def places(tensors: Sequence[Tensor], precisions: Sequence[Precision | None]) -> tuple[int, ...]:
        found = (Lot(tensor, precision) for tensor, precision in zip(tensors, precisions, strict=True))
        return tuple(lots.setdefault(lot, len(lots)) for lot in found)

    def kind_of(index: int, shape: int) -> int:
        tensors = weights.kinds[shape]
        precisions = tuple(
            form.precision(f"layers.{index}.{tensor.name}") if tensor.linear else None for tensor in tensors
        )
        kind = kinds.setdefault((shape, precisions), len(kinds))
        if kind == len(sorted_kinds):
            sorted_kinds.append(places(tensors, precisions))
        return kind

    # lots and kinds come last: what stands before fills them
    return Stock(
        first=places(weights.first, [None] * len(weights.first)),
        layers=tuple(kind_of(index, shape) for index, shape in enumerate(weights.layers)),
        drafts=tuple(kind_of(index, shape) for index, shape in enumerate(weights.drafts, len(weights.layers))),
        last=places(weights.last, [form.head if tensor.name == "lm_head" else None for tensor in weights.last]),
        kinds=tuple(sorted_kinds),
        lots=tuple(lots),
    )
