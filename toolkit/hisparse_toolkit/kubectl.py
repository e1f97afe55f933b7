"""kubectl as a person would run it: each command is printed before it runs, so that a reader can repeat it."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hisparse_toolkit.narrator import Narrator

LIMIT_S: Final = 120.0


class StepError(Exception):
    """A step did not show what it should; the message says what was expected and what was there."""


@dataclass(frozen=True)
class Kubectl:
    """One cluster, one namespace; without one, kubectl's own."""

    path: Path
    kubeconfig: Path
    namespace: str | None
    narrator: Narrator

    def show(self, *words: str, shown_from: str | None = None, limit_s: float = LIMIT_S, check: bool = True) -> str:
        """Print the command, run it and print what it says; with shown_from only from the line that starts so."""
        self.narrator.command(shlex.join(["kubectl", *self._placed(words)]))
        done = self._run(words, limit_s)
        said = done.stdout + done.stderr
        self.narrator.output(_from(said, shown_from))
        if check and done.returncode:
            raise StepError(f"kubectl {' '.join(words)} ended with {done.returncode}: {said.strip()}")
        return said

    def quietly(self, *words: str, limit_s: float = LIMIT_S) -> subprocess.CompletedProcess[str]:
        """Run without a word, for what the reader need not repeat."""
        return self._run(words, limit_s)

    def read(self, *words: str) -> Any:  # noqa: ANN401  whatever JSON the cluster holds
        """The JSON of `kubectl get ... -o json`, None where there is no such thing."""
        done = self._run(["get", *words, "-o", "json", "--ignore-not-found"], LIMIT_S)
        if done.returncode:
            raise StepError(f"kubectl get {' '.join(words)} ended with {done.returncode}: {done.stderr.strip()}")
        return json.loads(done.stdout) if done.stdout.strip() else None

    def items(self, *words: str) -> list[dict[str, Any]]:
        """The items of a list, none where there are none."""
        found = self.read(*words)
        items: list[dict[str, Any]] = found["items"] if found else []
        return items

    def _placed(self, words: Sequence[str]) -> list[str]:
        whole = "-A" in words or self.namespace is None or _is_for_all(words)
        return [*words] if whole else [*words[:1], "-n", str(self.namespace), *words[1:]]

    def _run(self, words: Sequence[str], limit_s: float) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                [self.path, *self._placed(words)],
                env={**os.environ, "KUBECONFIG": str(self.kubeconfig)},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=limit_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise StepError(f"kubectl {' '.join(words)} did not end within {limit_s:g} s") from None


def _from(text: str, start: str | None) -> str:
    if start is None:
        return text
    lines = text.splitlines()
    first = next((number for number, line in enumerate(lines) if line.startswith(start)), 0)
    return "\n".join(["...", *lines[first:]] if first else lines)


def _is_for_all(words: Sequence[str]) -> bool:
    """Whether the command is about something that belongs to no namespace."""
    return any(word in ("nodes", "crd", "namespace") or word.startswith("crd") for word in words)
