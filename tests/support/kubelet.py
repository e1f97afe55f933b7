"""How a kubelet reads `args` and `env` of a container (k8s.io/kubernetes third_party/forked/golang/expansion)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """$(NAME) is a variable where there is one, $$ is a $, anything else stays."""
    out, at = [], 0
    while at < len(text):
        one = text[at]
        if one != "$" or at + 1 == len(text):
            out.append(one)
            at += 1
            continue
        following = text[at + 1]
        if following == "$":
            out.append("$")
            at += 2
        elif following == "(" and (end := text.find(")", at + 2)) >= 0:
            name = text[at + 2 : end]
            out.append(variables.get(name, f"$({name})"))
            at = end + 1
        elif following == "(":
            out.append("$(")
            at += 2
        else:
            out.append(f"${following}")
            at += 2
    return "".join(out)


def started(container: Mapping[str, Any], secrets: str = "") -> tuple[list[str], dict[str, str]]:
    """Argument vector and environment of the process; a variable from a Secret has the value `secrets`."""
    variables: dict[str, str] = {}
    for entry in container.get("env") or ():
        variables[entry["name"]] = secrets if "valueFrom" in entry else expanded(entry.get("value", ""), variables)
    words: Sequence[str] = (*container.get("command", ()), *container.get("args", ()))
    return [expanded(word, variables) for word in words], variables
