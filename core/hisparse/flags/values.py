"""What can be said of a flag's value, alone and beside the other flags of its command."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from types import MappingProxyType
from typing import Any, Final

from hisparse import catalogue
from hisparse.flags import answers
from hisparse.flags.answers import FOREIGN_KEYS, HISPARSE_FLAG, KV_DTYPES, POOL_FLAG, POOL_SIZE
from hisparse.flags.arguments import (
    Flag,
    Type,
    connector_history,
    connectors_of,
    is_later,
    keys_of,
    limits_in,
    limits_of,
)
from hisparse.flags.known import RELEASES
from hisparse.flags.shell import Word
from hisparse.flags.verdict import Kind, Severity
from hisparse.units import shortened

HISPARSE: Final = "HiSparseConnector"
_KV_TRANSFER: Final = "--kv-transfer-config"
HISPARSE_SINCE: Final = "0.30"
HISPARSE_BLOCK_TOKENS: Final = 64
# argparse's type of these is vLLM's human_readable_int: k and m are decimal, K and M binary
_COUNT = re.compile(r"[0-9]+[KMGT]?|[0-9]+(?:\.[0-9]+)?[kmgt]")
_DECIMAL = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_FLOAT = re.compile(r"\s*[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|inf|infinity|nan)\s*", re.IGNORECASE)
_LENGTH: Final = "--max-model-len"
# as a length: whatever fits
_FITTING: Final = -1
# what is near a longer text is not looked for
_LONGEST_NAME: Final = 80
# numbers that nobody writes are not computed with
_LONGEST_NUMBER: Final = 40
_LONG_CONTEXT: Final = 131_072


@dataclass(frozen=True)
class Ruling:
    """What a value or a combination makes of a real flag. `key` is the key of a JSON argument that is to blame."""

    kind: Kind
    severity: Severity
    says: str
    instead: str = ""
    source: str = ""
    key: str = ""


@dataclass(frozen=True)
class Context:
    """The whole command as far as other flags depend on it: last values by long name, None where none was written."""

    release: str
    model: str = ""
    values: Mapping[str, Word | None] = field(default_factory=dict)
    off: frozenset[str] = frozenset()
    """Long names that were switched off with --no-NAME."""
    variables: Mapping[str, Word] = field(default_factory=dict)
    documents: Mapping[str, Any] = field(default_factory=dict)
    """JSON arguments that could be read, dotted keys merged in."""

    @property
    def connectors(self) -> tuple[Mapping[str, Any], ...]:
        """The KV connectors, those inside a MultiConnector one by one."""
        config = self.documents.get(_KV_TRANSFER)
        if not isinstance(config, dict):
            return ()
        if config.get("kv_connector") == "MultiConnector":
            extra = config.get("kv_connector_extra_config")
            inner = extra.get("connectors") if isinstance(extra, dict) else None
            return tuple(one for one in inner if isinstance(one, dict)) if isinstance(inner, list) else ()
        return (config,)

    @property
    def hisparse(self) -> bool:
        """Whether HiSparse is switched on."""
        return any(one.get("kv_connector") == HISPARSE for one in self.connectors)

    @property
    def release_has_hisparse(self) -> bool:
        """Whether the release has HiSparse at all."""
        return RELEASES.index(self.release) >= RELEASES.index(HISPARSE_SINCE)

    def whole(self, long: str) -> bool:
        """Whether a JSON argument was written as one value, and not by its keys alone."""
        return long in self.values

    @property
    def means_hisparse(self) -> bool:
        """Whether the person thinks that it is."""
        texts = [word.text for word in self.values.values() if word is not None]
        return self.hisparse or any("hisparse" in text.lower() for text in texts)


def document_of(word: Word) -> Any:  # noqa: ANN401  JSON
    """The JSON of an argument. Raises ValueError where it is none."""
    try:
        return json.loads(_expanded(word.text))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _expanded(text: str) -> str:
    """VLLM writes numbers such as 80g out before it reads JSON, outside of quotes."""
    parts = re.split(r'("(?:[^"\\]|\\.)*")', text)
    parts[::2] = [
        re.sub(r"\b\d{1,40}(?:\.\d{1,40})?[kKmMgGtT]\b", lambda one: str(count(one.group())), part)
        for part in parts[::2]
    ]
    return "".join(parts)


def count(text: str) -> int | None:
    """A whole number as vLLM reads it: 1k is 1,000, 1K is 1,024; None for other texts."""
    if len(text) > _LONGEST_NUMBER or not text.isascii():
        return None
    if re.fullmatch(r"[+-]?[0-9]+", text):
        return int(text)
    if not _COUNT.fullmatch(text):
        return None
    number, suffix = text[:-1], text[-1]
    return int(number) * _BINARY[suffix] if suffix in _BINARY else int(Fraction(number) * _DECIMAL[suffix])


def number(text: str) -> Fraction | None:
    """A plain number."""
    if len(text) > _LONGEST_NUMBER or not re.fullmatch(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)", text):
        return None
    return Fraction(text)


def is_default(flag: Flag, value: str) -> bool:
    """Whether a value is the one that holds without the flag."""
    if not flag.default:
        return False
    written, own = number(value), number(flag.default)
    return value == flag.default or (written is not None and written == own)


# --- rulings ------------------------------------------------------------------------------------------------------


def ruling(flag: Flag, written: Sequence[Word], context: Context) -> Ruling | None:
    """The first thing that the values or a combination have against it, None where there is nothing to say."""
    if any(word.opaque for word in written):
        return None
    for word in written:
        if (typed := _typed(flag, word.text)) is not None:
            return typed
    first = written[0].text if written else ""
    rule = _RULES.get(flag.long)
    found = rule(flag, first, context) if rule is not None else None
    if found is not None and found.severity is Severity.REFUSED:
        return found
    for word in written:
        if (outside := _outside(flag, word.text, context)) is not None:
            return outside
    return found or _with_hisparse(flag, first, context)


def _bad(says: str, instead: str = "", source: str = "", key: str = "") -> Ruling:
    return Ruling(Kind.BAD_VALUE, Severity.REFUSED, says, instead, source, key)


def _typed(flag: Flag, value: str) -> Ruling | None:
    """What the parser itself refuses to convert."""
    shown = f'"{shortened(value)}"'
    if value in ("", "None"):
        # vLLM reads both as nothing where the flag may hold nothing
        return None
    if flag.type is Type.INT and not re.fullmatch(r"\s*[+-]?[0-9]{1,40}\s*", value):
        return _bad(f"{shown} is not a whole number")
    if flag.type is Type.FLOAT and not _FLOAT.fullmatch(value):
        return _bad(f"{shown} is not a number")
    if flag.type is Type.COUNT and count(value) is None and not (flag.long == _LENGTH and value.lower() == "auto"):
        return _bad(
            f"{shown} is not a whole number; K and M are 1,024 and its square, k and m 1,000 and its square, and only "
            "these take a decimal point",
            source="utils/argparse_utils.py",
        )
    return None


def _outside(flag: Flag, value: str, context: Context) -> Ruling | None:
    """What the configs refuse once the parser has taken it."""
    bounds = limits_of(context.release).get(flag.long) or limits_in(answers.LIMITS.get(flag.long, ""))
    measured = _measured(flag, value) if bounds else None
    if measured is None or all(bound.holds(measured) for bound in bounds):
        return None
    if flag.long == "--port" and any(name in context.values for name in answers.UNUSED_PORT):
        return None
    source = answers.LIMITS_SOURCE.get(flag.long, "config/")
    says = f"{shortened(value)} is out of range; it has to be {' and '.join(map(str, bounds))}"
    needed = answers.LIMITED_WITH.get(flag.long)
    if needed is not None and needed not in context.values:
        says += f", and vLLM looks at it only with {needed}"
        return Ruling(Kind.BAD_VALUE, Severity.WARNING, says, source=source)
    if flag.long.startswith(answers.MULTIMODAL):
        says += ", and vLLM looks at it only for models that take more than text"
        return Ruling(Kind.BAD_VALUE, Severity.WARNING, says, source=source)
    return _bad(says, source=source)


def _measured(flag: Flag, value: str) -> Fraction | None:
    """The number that the parser makes of a value; None where it is no number, or none that anybody writes."""
    if flag.type is Type.INT:
        return Fraction(int(value)) if re.fullmatch(r"\s*[+-]?[0-9]{1,40}\s*", value) else None
    if flag.type is Type.COUNT:
        whole = count(value)
        return Fraction(whole) if whole is not None else None
    if flag.type is Type.FLOAT and len(value) <= _LONGEST_NUMBER and not re.search(r"[eE][+-]?[0-9]{4}", value):
        try:
            return Fraction(value.strip())
        except ValueError:
            return None
    return None


def _kv_cache_dtype(flag: Flag, value: str, context: Context) -> Ruling | None:  # noqa: ARG001
    if value in KV_DTYPES:
        return Ruling(
            Kind.NEVER_EXISTED,
            Severity.REFUSED,
            KV_DTYPES[value],
            f"{HISPARSE_FLAG} --kv-cache-dtype fp8" if context.release_has_hisparse else "",
            "config/cache.py",
        )
    return None


def _utilization(flag: Flag, value: str, context: Context) -> Ruling | None:  # noqa: ARG001
    share = number(value)
    if share is None or not 0 < share <= 1:
        return _bad(f'"{shortened(value)}" is not a share above 0 and up to 1, as in 0.9', source="config/cache.py")
    return None


def _max_model_len(flag: Flag, value: str, context: Context) -> Ruling | None:  # noqa: ARG001
    length = count(value)
    if length is None or length == _FITTING:
        return None
    if length < 1:
        return _bad(
            f"{shortened(value)} is out of range; it has to be at least 1, or -1 or auto for the longest that fits",
            source="config/model.py",
        )
    if "--hf-overrides" in context.values:
        return None
    allowed = context.variables.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN")
    if allowed is not None and allowed.text in ("1", "True", "true"):
        return None
    positions = _positions(context.model)
    source = "config/model.py"
    if positions is not None and length > positions:
        return _bad(
            f"{context.model} has {positions:,} positions, and vLLM refuses a longer length",
            f"{positions} or less, or --hf-overrides with rope_parameters for a model that stands stretching",
            source,
        )
    if positions is None and length > _LONG_CONTEXT:
        return Ruling(
            Kind.REAL,
            Severity.FINE,
            "refused if the model's config.json has fewer positions, unless rope_parameters are overridden or "
            "VLLM_ALLOW_LONG_MAX_MODEL_LEN=1",
            source=source,
        )
    return None


def _disable_log_stats(flag: Flag, value: str, context: Context) -> Ruling | None:  # noqa: ARG001
    return Ruling(
        Kind.HARMFUL,
        Severity.WARNING,
        "removes every vllm: metric from /metrics, so nobody sees the cache fill up",
        "leave it out",
        "v1/metrics/loggers.py",
    )


def _positions(model: str) -> int | None:
    """What a known model can count, where its config.json stretches nothing."""
    entry = catalogue.lookup(model) if model else None
    if entry is None:
        return None
    config = entry.config.get("text_config", entry.config)
    # vLLM multiplies by the factor for some kinds of stretching and not for others
    stretched = any("factor" in (config.get(key) or {}) for key in ("rope_scaling", "rope_parameters"))
    positions = config.get("max_position_embeddings")
    return positions if isinstance(positions, int) and not stretched else None


def _executor(flag: Flag, value: str, context: Context) -> Ruling | None:  # noqa: ARG001
    if context.hisparse and value and value != "mp":
        return Ruling(
            Kind.HARMFUL,
            Severity.WARNING,
            "with other executors than mp every rank pins a host pool of its own: RAM is host_pool_gib times ranks",
            "mp, or leave it out",
            "v1/hisparse/runtime.py",
        )
    return None


def _block_size(flag: Flag, value: str, context: Context) -> Ruling | None:  # noqa: ARG001
    tokens = count(value)
    if not context.means_hisparse or tokens is None:
        return None
    if tokens <= 0 or tokens % HISPARSE_BLOCK_TOKENS:
        return _bad(
            f"HiSparse needs a multiple of {HISPARSE_BLOCK_TOKENS} tokens", "leave it out", "v1/hisparse/binding.py"
        )
    if tokens == HISPARSE_BLOCK_TOKENS:
        return Ruling(Kind.DEFAULT, Severity.FINE, "the blocks that HiSparse has anyway")
    return Ruling(
        Kind.NO_EFFECT,
        Severity.WARNING,
        f"HiSparse splits it into blocks of {HISPARSE_BLOCK_TOKENS} tokens, the only size of the indexer's kernel",
        "leave it out",
        "v1/hisparse/binding.py",
    )


def _dtype(flag: Flag, value: str, context: Context) -> Ruling | None:  # noqa: ARG001
    if context.means_hisparse and value in ("half", "float16", "float", "float32"):
        return Ruling(
            Kind.HARMFUL,
            Severity.WARNING,
            "the sparse MLA kernels for an FP8 cache take bfloat16 only",
            "--dtype auto, or leave it out",
            "v1/attention/backends/mla/flashmla_sparse.py",
        )
    return None


_CONNECTOR: Final = "kv_connector"
_EXTRA: Final = "kv_connector_extra_config"
_POOL: Final = "host_pool_gib"
_ROLE: Final = "kv_role"


def _kv_transfer(flag: Flag, value: str, context: Context) -> Ruling | None:  # noqa: ARG001
    config = context.documents.get(_KV_TRANSFER)
    source = "config/kv_transfer.py"
    if not isinstance(config, dict):
        return None
    known = keys_of("KVTransferConfig", context.release)
    strange = [key for key in config if known and key not in known]
    if strange:
        inside = strange[0] == _POOL
        where = f"belongs inside {_EXTRA}" if inside else f"is no key of it; {_offer(known)}"
        return _bad(f'"{shortened(strange[0])}" {where}', _switch_on(context) if inside else "", source, key=strange[0])
    if config.get(_CONNECTOR) is not None and config.get(_ROLE) is None:
        instead = 'add "kv_role":"kv_both"' if context.whole(_KV_TRANSFER) else f"{_KV_TRANSFER}.{_ROLE} kv_both"
        return _bad(f"{_ROLE} is missing", instead, source, key=_CONNECTOR)
    if context.hisparse and not context.release_has_hisparse:
        return Ruling(
            Kind.NOT_YET,
            Severity.REFUSED,
            f"HiSparse is there since vLLM {HISPARSE_SINCE}",
            "a newer release",
            source,
            key=_CONNECTOR,
        )
    return _unknown_connector(config, context) or (_pool(context, source) if context.hisparse else None)


def _unknown_connector(config: Mapping[str, Any], context: Context) -> Ruling | None:
    """A name that no class is registered under; with a module of its own any name is one."""
    known = connectors_of(context.release)
    named = [(config, _CONNECTOR), *((one, _EXTRA) for one in context.connectors if one is not config)]
    for one, key in named if known else ():
        name = one.get(_CONNECTOR)
        if name is None or one.get("kv_connector_module_path") or name in known:
            continue
        said = shortened(str(name))
        span = connector_history(str(name))
        near = difflib.get_close_matches(str(name)[:_LONGEST_NAME], known, n=1)
        instead = near[0] if near else f"one of {', '.join(known)}; or kv_connector_module_path for one of your own"
        says = f'"{said}" is no connector of vLLM {context.release}{f"; it was there {span}" if span else ""}'
        kind = Kind.BAD_VALUE
        if span is not None:
            kind = Kind.NOT_YET if is_later(span, context.release) else Kind.REMOVED
        source = "distributed/kv_transfer/kv_connector/factory.py"
        return Ruling(kind, Severity.REFUSED, says, instead, source, key)
    return None


def _switch_on(context: Context) -> str:
    """What gives the pool its size, in the form in which the connector was written."""
    return HISPARSE_FLAG if context.whole(_KV_TRANSFER) else POOL_FLAG


def _pool(context: Context, source: str) -> Ruling | None:
    ours = [one for one in context.connectors if one.get(_CONNECTOR) == HISPARSE]
    if len(ours) > 1:
        return _bad("only one HiSparseConnector may be configured", "", source, key=_EXTRA)
    extra = ours[0].get(_EXTRA)
    pool = extra.get(_POOL) if isinstance(extra, dict) else None
    if pool is None:
        says = f"the {HISPARSE} has no {_POOL}; {POOL_SIZE}"
        return _bad(says, _switch_on(context), source, key=_CONNECTOR)
    size = number(str(pool))
    if isinstance(pool, bool) or size is None or size <= 0:
        says = f"{_POOL} is {shortened(str(pool))}, not a number of GiB above 0; {POOL_SIZE}"
        return _bad(says, _switch_on(context), source, key=f"{_EXTRA}.{_POOL}")
    return None


def _offer(known: tuple[str, ...]) -> str:
    return f"its keys are {', '.join(known)}"


def _attention(flag: Flag, value: str, context: Context) -> Ruling | None:  # noqa: ARG001
    config = context.documents.get("--attention-config")
    if not isinstance(config, dict) or not isinstance(inner := config.get("hisparse_config"), dict):
        return None
    known = keys_of("HiSparseConfig", context.release)
    source = "config/attention.py"
    if not known:
        return Ruling(
            Kind.NOT_YET,
            Severity.REFUSED,
            f"HiSparse is there since vLLM {HISPARSE_SINCE}",
            "a newer release",
            source,
            key="hisparse_config",
        )
    strange = [key for key in inner if key not in known]
    if strange:
        why = FOREIGN_KEYS.get(strange[0], "is no key of hisparse_config")
        instead = HISPARSE_FLAG if strange[0] in ("host_pool_gib", "host_to_device_ratio") else ""
        key = f"hisparse_config.{strange[0]}"
        return _bad(f'"{shortened(strange[0])}" {why}; {_offer(known)}', instead, source, key=key)
    if not context.hisparse:
        return Ruling(
            Kind.CONFLICT,
            Severity.REFUSED,
            "hisparse_config alone does not switch HiSparse on: it needs a HiSparseConnector with host_pool_gib",
            HISPARSE_FLAG,
            "v1/hisparse/layout.py",
            key="hisparse_config",
        )
    return None


def _with_hisparse(flag: Flag, value: str, context: Context) -> Ruling | None:
    """The combinations that vLLM refuses by name."""
    if not context.hisparse:
        return None
    source = "config/vllm.py"
    size = count(value)
    if flag.long == "--pipeline-parallel-size" and size is not None and size > 1:
        return _conflict("HiSparse does not support pipeline parallelism", "1, or leave it out", source)
    if flag.long == "--decode-context-parallel-size" and size is not None and size > 1:
        return _conflict("HiSparse does not support decode context parallelism", "1, or leave it out", source)
    if flag.long == "--scheduler-reserve-full-isl" and flag.negative and context.release != HISPARSE_SINCE:
        return _conflict("HiSparse requires --scheduler-reserve-full-isl", "leave it out", source)
    if flag.long == "--disable-hybrid-kv-cache-manager" and not flag.negative:
        return _conflict("HiSparse requires the hybrid KV cache manager", "leave it out", source)
    if flag.long == "--compilation-config" and context.release != HISPARSE_SINCE:
        config = context.documents.get(flag.long)
        if isinstance(config, dict) and config.get("cudagraph_mode") == "FULL":
            instead = "FULL_AND_PIECEWISE, the default"
            found = _conflict("HiSparse does not support cudagraph_mode FULL", instead, source)
            return replace(found, key="cudagraph_mode")
    return None


def _conflict(says: str, instead: str, source: str) -> Ruling:
    return Ruling(Kind.CONFLICT, Severity.REFUSED, says, instead, source)


Judge = Callable[[Flag, str, Context], Ruling | None]

_RULES: Final[Mapping[str, Judge]] = MappingProxyType(
    {
        "--attention-config": _attention,
        "--block-size": _block_size,
        "--disable-log-stats": _disable_log_stats,
        "--distributed-executor-backend": _executor,
        "--dtype": _dtype,
        "--gpu-memory-utilization": _utilization,
        "--kv-cache-dtype": _kv_cache_dtype,
        _KV_TRANSFER: _kv_transfer,
        "--max-model-len": _max_model_len,
    }
)
