"""May a pod run on this node at all: cordon, taints, node selector, required node affinity.

The scheduler's own rules (kube-scheduler: TaintToleration, NodeAffinity) for what does not depend on what is free.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from hisparse_operator.decide.identity import labels_of, name_of
from hisparse_operator.world import Object

_HARD: Final = frozenset({"NoSchedule", "NoExecute"})
Toleration = Mapping[str, Any]
Taint = Mapping[str, Any]


def untolerated(node: Object, tolerations: Sequence[Toleration]) -> Taint | None:
    """The first taint that keeps the pod away. Cordoned nodes carry a taint too, which comes a moment later."""
    for taint in (node.get("spec") or {}).get("taints") or ():
        if taint.get("effect") in _HARD and not any(tolerates(toleration, taint) for toleration in tolerations):
            found: Taint = taint
            return found
    return None


def told(taint: Taint) -> str:
    """The taint as kubectl writes it."""
    value = f"={taint['value']}" if taint.get("value") else ""
    return f"{taint.get('key')}{value}:{taint.get('effect')}"


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    """Whether this toleration covers this taint."""
    if toleration.get("effect") not in (None, "", taint.get("effect")):
        return False
    if toleration.get("key") not in (None, "", taint.get("key")):
        return False
    if toleration.get("operator") == "Exists":
        return True
    return bool(toleration.get("key")) and toleration.get("value", "") == taint.get("value", "")


def is_cordoned(node: Object) -> bool:
    """Whether somebody has said that nothing new may come here."""
    return bool((node.get("spec") or {}).get("unschedulable"))


def matches_selector(node: Object, selector: Mapping[str, str]) -> bool:
    """Whether the node has every one of these labels."""
    labels = labels_of(node)
    return all(labels.get(key) == value for key, value in selector.items())


def matches_affinity(node: Object, affinity: Mapping[str, Any]) -> bool:
    """Whether one of the required node selector terms matches; True where none is required."""
    # of the right kind: decide.shapes has looked at it
    required = ((affinity.get("nodeAffinity") or {}).get("requiredDuringSchedulingIgnoredDuringExecution")) or {}
    terms = required.get("nodeSelectorTerms") or ()
    return not terms or any(_matches_term(node, term) for term in terms)


def _matches_term(node: Object, term: Mapping[str, Any]) -> bool:
    expressions, fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
    if not expressions and not fields:
        return False  # an empty term matches nothing
    labels = labels_of(node)
    return all(_matches(labels.get(one.get("key", "")), one) for one in expressions) and all(
        _matches(name_of(node) if one.get("key") == "metadata.name" else None, one) for one in fields
    )


def _matches(value: str | None, requirement: Mapping[str, Any]) -> bool:
    values = tuple(requirement.get("values") or ())
    match requirement.get("operator"):
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt" as operator:
            number, limit = _integer(value), _integer(values[0] if values else None)
            if number is None or limit is None:
                return False
            return number > limit if operator == "Gt" else number < limit
        case _:
            return False


def _integer(text: str | None) -> int | None:
    try:
        return int(text) if text is not None else None
    except ValueError:
        return None
