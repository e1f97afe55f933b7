"""Blocks that the documents of several commands share: a plan in short, what it loses, a scaling taken for granted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hisparse.losses import losses
from hisparse.plan import Plan
from hisparse.rounding import decimal
from hisparse_toolkit.open_question import Scaled


def plan_json(plan: Plan) -> Mapping[str, Any]:
    """What a table of plans says of each."""
    return {
        "mode": plan.mode.value,
        "modeReason": plan.mode_reason,
        "kvCacheDtype": plan.kv_dtype,
        "kvCacheDtypeReason": plan.kv_dtype_reason,
        "kvBytes": plan.kv_budget,
        "podBytes": plan.host.pod,
        "concurrencyAtMaxTokens": decimal(plan.at_max.tier),
        "concurrencyAtTypicalTokens": decimal(plan.at_typical.tier),
        "typicalTokens": plan.at_typical.tokens,
        "warnings": list(plan.warnings),
    }


def losses_json(plan: Plan) -> list[Mapping[str, Any]]:
    """What a plan loses, and who says so."""
    found = losses(plan.mode, plan.kv_dtype, plan.model)
    return [{"what": one.what, "lossless": one.lossless, "source": one.source} for one in found]


def scaling_json(asked: Scaled) -> Mapping[str, Any] | None:
    """The RoPE scaling that an answer takes for granted."""
    found = asked.assumed
    if found is None:
        return None
    return {
        "factor": str(found.factor),
        "originalTokens": found.original_positions,
        "positions": found.usable,
        "hfOverrides": found.hf_overrides,
        "sentence": found.sentence,
        "cost": found.cost,
    }
