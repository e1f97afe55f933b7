"""What whoever installs the operator decides; the spec of one inference decides everything else."""

from __future__ import annotations

from dataclasses import dataclass

from hisparse.engine import PINNED_IMAGE


@dataclass(frozen=True)
class OperatorSettings:
    """Read once at start.

    engine_image serves models where spec.engine.image says nothing, and already contains the launcher.
    launcher_image brings the launcher into an engine image that is not ours.
    revision_history_limit is how many revisions without pods are kept to go back to.
    assumed_gpu is what a plan is made for where the operator may not look and resources.gpuProducts is absent.
    """

    engine_image: str = PINNED_IMAGE
    launcher_image: str = PINNED_IMAGE
    revision_history_limit: int = 5
    assumed_gpu: str = "h200"
