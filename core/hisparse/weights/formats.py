"""How a checkpoint stores its weights, read from quantization_config.

Sources: vLLM 0.33, model_executor/layers/quantization; compressed-tensors' QuantizationArgs; OCP MX formats.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from hisparse.config import LARGEST
from hisparse.errors import SpecError
from hisparse.rounding import cdiv
from hisparse.weights.fields import UnknownError, WeightFields
from hisparse.weights.module_names import ModuleNames, module_names


@dataclass(frozen=True)
class Precision:
    """How a matrix is stored: `bits` an element, and one scale for each block.

    block is (rows, columns) that share a scale, 0 for all of them; zero_bits: a zero point beside each scale.
    tensor_bytes: one more scale for the whole matrix.
    """

    bits: int
    block: tuple[int, int] = (0, 0)
    scale_bits: int = 0
    zero_bits: int = 0
    tensor_bytes: int = 0

    def matrix_bytes(self, rows: int, columns: int) -> int:
        """Bytes of one matrix with its scales."""
        if not rows or not columns:
            return 0
        scales = cdiv(rows, self.block[0] or rows) * cdiv(columns, self.block[1] or columns)
        bits = rows * columns * self.bits + scales * (self.scale_bits + self.zero_bits)
        return cdiv(bits, 8) + self.tensor_bytes


_FP8 = Precision(8, scale_bits=32)
_FP8_CHANNEL = Precision(8, (1, 0), 32)
_NVFP4 = Precision(4, (1, 16), 8, tensor_bytes=4)
MXFP4 = Precision(4, (1, 32), 8)
_MXFP8 = Precision(8, (1, 32), 8)
_MODELOPT: Final[Mapping[str, Precision]] = MappingProxyType(
    {
        "FP8": _FP8,
        "FP8_PER_CHANNEL_PER_TOKEN": _FP8_CHANNEL,
        "FP8_PB_WO": Precision(8, (128, 128), 32),
        "NVFP4": _NVFP4,
        "NVFP4_AWQ": _NVFP4,
        "W4A16_NVFP4": _NVFP4,
        "MXFP8": _MXFP8,
    }
)


@dataclass(frozen=True)
class WeightFormat:
    """How a checkpoint stores its weights.

    dtype_bytes: what is not quantized takes this many bytes an element.
    default applies to every linear layer that neither rules nor ignored name; None leaves them alone.
    known is False where the method is not one that this package knows: only `method` means something then.
    """

    method: str
    dtype_bytes: int
    default: Precision | None = None
    rules: tuple[tuple[ModuleNames, Precision], ...] = ()
    ignored: ModuleNames | None = None
    head: Precision | None = None
    known: bool = True

    def precision(self, name: str) -> Precision | None:
        """The precision of a linear layer by its full name ("layers.0.mlp.down_proj"); None where not quantized."""
        if self.ignored is not None and self.ignored.holds(name):
            return None
        return next((precision for names, precision in self.rules if names.holds(name)), self.default)


def weight_format(config: Mapping[str, Any]) -> WeightFormat:
    """How a config.json says that its weights are stored; known is False for a method without a rule here."""
    fields = WeightFields(config)
    width = fields.dtype_bytes()
    quantized = fields.first("quantization_config", "compression_config")
    if not isinstance(quantized, Mapping):
        return WeightFormat("none", width or 2, known=width is not None)
    inner = quantized.get("quantization")
    described = inner if isinstance(inner, Mapping) else quantized
    fallback = "modelopt" if "quant_algo" in described else "unknown"
    method = str(quantized.get("quant_method") or fallback)
    read = _METHODS.get(method)
    if read is None or width is None:
        return WeightFormat(method, width or 2, known=False)
    try:
        return read(method, width, described)
    except SpecError:
        return WeightFormat(method, width, known=False)


def _ignored(quantized: Mapping[str, Any], *keys: str) -> ModuleNames | None:
    """The modules that stay at the model's dtype, of the first key that the config has."""
    return next((module_names(quantized[key]) for key in keys if quantized.get(key)), None)


def _size(quantized: Mapping[str, Any], key: str, default: int | None = None) -> int:
    value = quantized.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or not -1 <= value <= LARGEST:
        raise UnknownError(key)
    return value


def _fp8(method: str, width: int, quantized: Mapping[str, Any]) -> WeightFormat:
    block = quantized.get("weight_block_size")
    precision = _FP8_CHANNEL if method == "fbgemm_fp8" else _FP8
    if block is not None:
        precision = Precision(8, _block(block), 32)
    ignored = _ignored(quantized, "modules_to_not_convert", "ignored_layers")
    return WeightFormat(method, width, precision, ignored=ignored)


def _block(value: object) -> tuple[int, int]:
    match value:
        case [int(rows), int(columns)] if rows > 0 and columns > 0:
            return rows, columns
    raise UnknownError("weight_block_size")


def _grouped(method: str, width: int, quantized: Mapping[str, Any]) -> WeightFormat:
    """GPTQ and AWQ: fp16 scale and packed zero point for each group of input features."""
    bits = _size(quantized, "bits")
    group = max(0, _size(quantized, "group_size"))
    if bits not in (2, 3, 4, 8) or quantized.get("dynamic"):
        raise UnknownError("bits")
    precision = Precision(bits, (1, group), 16, bits)
    head = precision if quantized.get("lm_head") is True else None
    return WeightFormat(method, width, precision, ignored=_ignored(quantized, "modules_to_not_convert"), head=head)


def _compressed(method: str, width: int, quantized: Mapping[str, Any]) -> WeightFormat:
    groups = quantized.get("config_groups")
    sparsity = quantized.get("sparsity_config")
    if not isinstance(groups, Mapping) or (isinstance(sparsity, Mapping) and sparsity.get("format") != "dense"):
        raise UnknownError("config_groups")
    default: Precision | None = None
    rules: list[tuple[ModuleNames, Precision]] = []
    for group in groups.values():
        if not isinstance(group, Mapping) or not isinstance(group.get("weights"), Mapping):
            raise UnknownError("config_groups")
        precision = _arguments(group["weights"])
        targets = group.get("targets", ["Linear"])
        if targets == ["Linear"]:
            default = precision
        else:
            rules.append((module_names(targets), precision))
    head = next((precision for names, precision in rules if "lm_head" in names.plain), None)
    return WeightFormat(method, width, default, tuple(rules), _ignored(quantized, "ignore"), head)


def _arguments(weights: Mapping[str, Any]) -> Precision:
    """The precision of compressed-tensors' weight arguments: fp32 scales for fp8, 16 bits for integers."""
    bits, kind = _size(weights, "num_bits"), weights.get("type", "int")
    group = _size(weights, "group_size", -1) if weights.get("group_size") is not None else -1
    strategy = str(weights.get("strategy") or ("group" if group > 0 else "tensor"))
    if kind == "float" and bits == 4 and group in (16, 32):  # noqa: PLR2004 - NVFP4's and MXFP4's groups
        return _NVFP4 if group == 16 else MXFP4  # noqa: PLR2004
    if kind not in ("int", "float") or bits not in (4, 8) or (kind == "float" and bits != 8):  # noqa: PLR2004
        raise UnknownError("num_bits")
    scale = 32 if kind == "float" else 16
    zero = 0 if weights.get("symmetric", True) else bits
    if strategy == "block":
        return Precision(bits, _block(weights.get("block_structure")), scale, zero)
    blocks = {"tensor": (0, 0), "channel": (1, 0), "group": (1, max(0, group))}
    if strategy not in blocks:
        raise UnknownError("strategy")
    return Precision(bits, blocks[strategy], scale, zero)


def _modelopt(method: str, width: int, quantized: Mapping[str, Any]) -> WeightFormat:
    algorithm = str(quantized.get("quant_algo"))
    ignored = _ignored(quantized, "ignore", "exclude_modules")
    if algorithm != "MIXED_PRECISION":
        if algorithm not in _MODELOPT:
            raise UnknownError("quant_algo")
        return WeightFormat(method, width, _MODELOPT[algorithm], ignored=ignored)
    layers = quantized.get("quantized_layers")
    if not isinstance(layers, Mapping):
        raise UnknownError("quantized_layers")
    by_algorithm: dict[str, list[str]] = {}
    for name, layer in layers.items():
        said = str(layer.get("quant_algo")) if isinstance(layer, Mapping) else ""
        if said not in _MODELOPT:
            raise UnknownError("quant_algo")
        by_algorithm.setdefault(said, []).append(str(name))
    rules = tuple((module_names(names), _MODELOPT[said]) for said, names in by_algorithm.items())
    head = next((precision for names, precision in rules if "lm_head" in names.plain), None)
    return WeightFormat(method, width, None, rules, ignored, head)


def _mxfp4(method: str, width: int, quantized: Mapping[str, Any]) -> WeightFormat:
    """gpt-oss: experts only; vLLM leaves linear layers alone under this method."""
    ignored = _ignored(quantized, "modules_to_not_convert")
    return WeightFormat(method, width, rules=((module_names(["experts"]), MXFP4),), ignored=ignored)


def _bitsandbytes(method: str, width: int, quantized: Mapping[str, Any]) -> WeightFormat:
    """4 bits with an absolute maximum per 64, itself 8 bits where quantized twice; or 8 bits with one per row."""
    ignored = _ignored(quantized, "llm_int8_skip_modules")
    if quantized.get("load_in_8bit") is True:
        return WeightFormat(method, width, Precision(8, (1, 0), 32), ignored=ignored)
    if quantized.get("load_in_4bit") is not True:
        raise UnknownError("load_in_4bit")
    scale = 8 if quantized.get("bnb_4bit_use_double_quant") is True else 32
    return WeightFormat(method, width, Precision(4, (1, 64), scale), ignored=ignored)


_METHODS: Final[Mapping[str, Callable[[str, int, Mapping[str, Any]], WeightFormat]]] = MappingProxyType(
    {
        "fp8": _fp8,
        "fbgemm_fp8": _fp8,
        "gptq": _grouped,
        "gptq_marlin": _grouped,
        "awq": _grouped,
        "awq_marlin": _grouped,
        "compressed-tensors": _compressed,
        "modelopt": _modelopt,
        "modelopt_fp4": _modelopt,
        "modelopt_mixed": _modelopt,
        "mxfp4": _mxfp4,
        "bitsandbytes": _bitsandbytes,
    }
)
