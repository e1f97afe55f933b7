"""The bytes of one tensor on one GPU, as vLLM 0.33 holds it."""

from __future__ import annotations

from dataclasses import dataclass

from hisparse.rounding import cdiv, round_up
from hisparse.weights.formats import MXFP4, Precision
from hisparse.weights.tensors import Split, Tensor

_VOCAB_PADDING = 64


@dataclass(frozen=True)
class Parallel:
    """Ranks of one replica: each data-parallel rank is `tensor` x `pipeline` GPUs.

    expert: --enable-expert-parallel, whole experts on each rank instead of a slice of every expert.
    """

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    expert: bool = False


def held_bytes(tensor: Tensor, precision: Precision | None, dtype_bytes: int, parallel: Parallel) -> int:
    """Bytes of a tensor on one rank. precision is None where it keeps the model's dtype, of dtype_bytes."""
    # vLLM loads float32 checkpoints in 16 bits (config/model.py, dtype auto)
    width = min(2, dtype_bytes)
    copies, rows, columns = tensor.copies, tensor.rows, tensor.columns
    share, ranks = _share(tensor, parallel)
    if tensor.split is Split.VOCABULARY:
        rows = round_up(rows, _VOCAB_PADDING)
    if tensor.split is Split.EXPERTS:
        if parallel.expert:
            copies, ranks = cdiv(copies, ranks), 1
        if precision == MXFP4:
            rows, columns, ranks = *_padded_expert(tensor, ranks), 1
    matrix = (precision or Precision(8 * width)).matrix_bytes(rows, columns)
    if tensor.dequantized and precision is not None:
        matrix += rows * columns * width
    return cdiv(copies * (matrix + tensor.bias * rows * width) * share, ranks)


def _share(tensor: Tensor, parallel: Parallel) -> tuple[int, int]:
    """(share, of): the part of a tensor that one rank holds."""
    match tensor.split:
        case Split.REPLICATED:
            return 1, 1
        case Split.HEADS:
            return cdiv(tensor.heads, parallel.tensor), tensor.heads
        case Split.EXPERTS:
            # sliced over all ranks, data-parallel ones included (FusedMoEParallelConfig.make)
            return 1, parallel.tensor * parallel.data
        case Split.SHARED_EXPERTS if parallel.expert and parallel.tensor > 1 and parallel.data > 1:
            # MoE layers run sequence parallel then (config/parallel.py, use_sequence_parallel_moe)
            return 1, 1
        case _:
            return 1, parallel.tensor


def _padded_expert(tensor: Tensor, ranks: int) -> tuple[int, int]:
    """(rows, columns) of an MXFP4 expert on one of `ranks`, padded as the Marlin and TRT-LLM kernels want it.

    A rank's slice of the intermediate size is rounded up to 128, the hidden size to 256; other kernels pad less
    (fused_moe/oracle/mxfp4.py, mxfp4_round_up_hidden_size_and_intermediate_size).
    """
    if tensor.by_columns:
        return round_up(tensor.rows, 256), round_up(cdiv(tensor.columns, ranks), 128)
    return round_up(cdiv(tensor.rows, ranks), 128), round_up(tensor.columns, 256)
