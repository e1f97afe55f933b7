"""Blocks that are passed on to the pod as they are: the known fields have to be of the right kind.

The CRD leaves these blocks open, so that a field of a newer Kubernetes can be used. What is read here, or is wrong in
any Kubernetes, is told with its field before anything is made of it; unknown fields are the API server's to judge.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from hisparse.errors import SpecError
from hisparse.spec import HiSparseInferenceSpec

Shape: TypeAlias = "type | tuple[type, ...] | list[Shape] | dict[str, Shape] | MapOf"


@dataclass(frozen=True)
class MapOf:
    """An object whose keys are the user's."""

    value: Any


# a name that ends in "!" has to be there
_QUANTITIES: Final = MapOf((str, int, float))
_EXPRESSION: Final[Shape] = {"key!": str, "operator!": str, "values": [str]}
_SELECTOR: Final[Shape] = {"matchLabels": MapOf(str), "matchExpressions": [_EXPRESSION]}
_NODE_TERM: Final[Shape] = {"matchExpressions": [_EXPRESSION], "matchFields": [_EXPRESSION]}
_POD_TERM: Final[Shape] = {
    "topologyKey!": str,
    "labelSelector": _SELECTOR,
    "namespaceSelector": _SELECTOR,
    "namespaces": [str],
}
_POD_AFFINITY: Final[Shape] = {
    "requiredDuringSchedulingIgnoredDuringExecution": [_POD_TERM],
    "preferredDuringSchedulingIgnoredDuringExecution": [{"weight!": int, "podAffinityTerm!": _POD_TERM}],
}
_AFFINITY: Final[Shape] = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms!": [_NODE_TERM]},
        "preferredDuringSchedulingIgnoredDuringExecution": [{"weight!": int, "preference!": _NODE_TERM}],
    },
    "podAffinity": _POD_AFFINITY,
    "podAntiAffinity": _POD_AFFINITY,
}
_TOLERATION: Final[Shape] = {"key": str, "operator": str, "value": str, "effect": str, "tolerationSeconds": int}
_SPREAD: Final[Shape] = {
    "maxSkew!": int,
    "topologyKey!": str,
    "whenUnsatisfiable!": str,
    "labelSelector": _SELECTOR,
    "minDomains": int,
    "matchLabelKeys": [str],
    "nodeAffinityPolicy": str,
    "nodeTaintsPolicy": str,
}
_NAME: Final[Shape] = {"name": str, "optional": bool}
_KEY: Final[Shape] = {"name": str, "key!": str, "optional": bool}
_ENV_SOURCE: Final[Shape] = {
    "fieldRef": {"fieldPath!": str},
    "resourceFieldRef": {"resource!": str, "containerName": str},
    "secretKeyRef": _KEY,
    "configMapKeyRef": _KEY,
}
_ENV: Final[Shape] = {"name!": str, "value": str, "valueFrom": _ENV_SOURCE}
_ENV_FROM: Final[Shape] = {"prefix": str, "secretRef": _NAME, "configMapRef": _NAME}
_SECURITY: Final[Shape] = {
    **dict.fromkeys(("runAsUser", "runAsGroup", "fsGroup"), int),
    **dict.fromkeys(("runAsNonRoot", "privileged", "readOnlyRootFilesystem", "allowPrivilegeEscalation"), bool),
    "fsGroupChangePolicy": str,
    "supplementalGroups": [int],
    "sysctls": [{"name!": str, "value!": str}],
    "seccompProfile": {"type!": str, "localhostProfile": str},
    "appArmorProfile": {"type!": str, "localhostProfile": str},
    "seLinuxOptions": dict.fromkeys(("user", "role", "type", "level"), str),
    "capabilities": {"add": [str], "drop": [str]},
}
_ITEMS: Final[Shape] = [{"key!": str, "path!": str, "mode": int}]
_VOLUME: Final[Shape] = {
    "name!": str,
    "emptyDir": {"medium": str, "sizeLimit": (str, int)},
    "hostPath": {"path!": str, "type": str},
    "persistentVolumeClaim": {"claimName!": str, "readOnly": bool},
    "secret": {"secretName": str, "optional": bool, "defaultMode": int, "items": _ITEMS},
    "configMap": {"name": str, "optional": bool, "defaultMode": int, "items": _ITEMS},
    "nfs": {"server!": str, "path!": str, "readOnly": bool},
    "csi": {"driver!": str, "readOnly": bool, "volumeAttributes": MapOf(str)},
    "projected": {"defaultMode": int, "sources": [{}]},
    "downwardAPI": {"defaultMode": int, "items": [{"path!": str}]},
    "ephemeral": {},
}
_MOUNT: Final[Shape] = {
    "name!": str,
    "mountPath!": str,
    "readOnly": bool,
    "subPath": str,
    "subPathExpr": str,
    "mountPropagation": str,
}
_CONTAINER: Final[Shape] = {
    "name!": str,
    "image!": str,
    "imagePullPolicy": str,
    "command": [str],
    "args": [str],
    "workingDir": str,
    "env": [_ENV],
    "envFrom": [_ENV_FROM],
    "ports": [{"containerPort!": int, "name": str, "protocol": str, "hostPort": int}],
    "resources": {"requests": _QUANTITIES, "limits": _QUANTITIES},
    "volumeMounts": [_MOUNT],
    "securityContext": _SECURITY,
    "restartPolicy": str,
    "lifecycle": {},
    "livenessProbe": {},
    "readinessProbe": {},
    "startupProbe": {},
}
_BLOCKS: Final[Mapping[str, Shape]] = {
    "placement": {"tolerations": [_TOLERATION], "affinity": _AFFINITY, "topologySpread": [_SPREAD]},
    "engine": {"env": [{"valueFrom": _ENV_SOURCE}], "envFrom": [_ENV_FROM]},
    "podTemplate": {
        "volumes": [_VOLUME],
        "volumeMounts": [_MOUNT],
        "sidecars": [_CONTAINER],
        "securityContext": _SECURITY,
        "containerSecurityContext": _SECURITY,
    },
}
_KINDS: Final[Mapping[type, tuple[str, str]]] = {
    str: ("text", "put it into quotes"),
    int: ("a whole number", "write it without quotes"),
    float: ("a number", "write it without quotes"),
    bool: ("true or false", "write it without quotes"),
}


def faults(spec: HiSparseInferenceSpec) -> tuple[SpecError, ...]:
    """What is of the wrong kind in the spec's free-form blocks."""
    blocks = {"placement", "engine", "pod_template"}
    raw = spec.model_dump(mode="json", by_alias=True, exclude_none=True, include=blocks)
    return tuple(_faults(raw, dict(_BLOCKS), "spec"))


def _faults(value: Any, shape: Any, field: str) -> Iterator[SpecError]:  # noqa: ANN401 - JSON
    match shape:
        case dict():
            yield from _in_block(value, shape, field)
        case [item]:
            if not isinstance(value, list):
                yield SpecError(field, f'{_shown(value)} is no list; begin each entry with "-"')
                return
            for index, one in enumerate(value):
                yield from _faults(one, item, f"{field}[{index}]")
        case MapOf(value=item):
            if not isinstance(value, Mapping):
                yield SpecError(field, f"{_shown(value)} is no block of names and values; write one per line")
                return
            for key, one in value.items():
                yield from _faults(one, item, f"{field}.{key}")
        case _:
            kinds = shape if isinstance(shape, tuple) else (shape,)
            # a bool is an int for Python only
            if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
                wanted, step = _KINDS[kinds[0]]
                yield SpecError(field, f"{_shown(value)} is not {wanted}; {step}, as in a Pod")


def _in_block(value: Any, shape: Mapping[str, Any], field: str) -> Iterator[SpecError]:  # noqa: ANN401 - JSON
    if not isinstance(value, Mapping):
        yield SpecError(field, f"{_shown(value)} is no block of fields; write it as in a Pod")
        return
    for name, kind in shape.items():
        key, needed = name.rstrip("!"), name.endswith("!")
        if value.get(key) is not None:
            yield from _faults(value[key], kind, f"{field}.{key}")
        elif needed:
            yield SpecError(f"{field}.{key}", "is needed and not set; write it as in a Pod")


def _shown(value: Any) -> str:  # noqa: ANN401 - JSON
    text = f'"{value}"' if isinstance(value, str) else str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."  # noqa: PLR2004 - enough to find it
