"""A model's weights, counted from its config.json alone, and the bytes of them that one GPU holds.

The shapes are those of the checkpoint's tensors. How a rank holds them follows vLLM 0.33: model_executor/layers/
linear.py (column and row parallel), vocab_parallel_embedding.py (vocabulary padded to 64), fused_moe/config.py
(experts over tensor x data ranks), distributed/utils.py (layers of a pipeline stage). Unknown is an answer: an
architecture, field or quantization method that this package does not know gives None, never a guess.
"""

from __future__ import annotations

from hisparse.weights.checkpoint import Checkpoint, read_checkpoint
from hisparse.weights.families import ARCHITECTURES
from hisparse.weights.formats import Precision, WeightFormat, weight_format
from hisparse.weights.ranks import Parallel
from hisparse.weights.reader import read_weights
from hisparse.weights.tensors import Parameters, Part, Split, Tensor, Weights

__all__ = [
    "ARCHITECTURES",
    "Checkpoint",
    "Parallel",
    "Parameters",
    "Part",
    "Precision",
    "Split",
    "Tensor",
    "WeightFormat",
    "Weights",
    "read_checkpoint",
    "read_weights",
    "weight_format",
]
