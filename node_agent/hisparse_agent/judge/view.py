"""What the checks look at: this reading, those before it, what was learned, and what a policy says otherwise."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

from hisparse.hardware import gpu_named
from hisparse.nodes.catalogue import Check, Threshold
from hisparse.nodes.policy import CheckOverride
from hisparse_agent.judge.ledger import Ledger, uuid_of
from hisparse_agent.judge.verdict import HOST, Verdict, absent, unknown, unsupported
from hisparse_agent.readings import Absence, EnginePod, GpuReading, Missing, NodeReading, Nvml

NS: Final = 10**9
_PERCENT: Final = 100
_NO_LIBRARY: Final = (
    "install NVIDIA's driver on the node or, where it is there, set runtimeClassName nvidia in the agent's DaemonSet"
)

Judge = Callable[["View", Check], Iterable[Verdict]]
GpuJudge = Callable[["View", Check, GpuReading], Verdict]
PodJudge = Callable[["View", Check, EnginePod], Verdict]


@dataclass(frozen=True)
class Moment:
    """A reading of this boot with its age. gpus are by UUID and by subject, pods by their key."""

    age_ns: int
    reading: NodeReading
    gpus: Mapping[str, GpuReading]
    pods: Mapping[str, EnginePod]


@dataclass(frozen=True)
class View:
    """One poll. past is oldest first and ends with this reading itself; own_caps are this project's power caps, mW."""

    reading: NodeReading
    past: tuple[Moment, ...]
    ledger: Ledger
    overrides: Mapping[str, CheckOverride]
    own_caps: Mapping[str, int]

    def limits(
        self, check: Check, product: str = "", here: Callable[[Threshold], Threshold] | None = None
    ) -> Threshold:
        """The thresholds of a check for a GPU product as NVML names it, with what a policy says otherwise.

        here: what this machine makes of the table's; a policy's are taken as they are.
        """
        known = gpu_named(product) if product else None
        table = check.threshold_of(known.name if known else None)
        limits = here(table) if here else table
        override = self.overrides.get(check.id)
        if override is None:
            return limits
        return replace(
            limits,
            warn=limits.warn if override.warn is None else override.warn,
            critical=limits.critical if override.critical is None else override.critical,
        )

    def holder(self, gpu: GpuReading) -> str:
        """What standings of a GPU are kept by."""
        return uuid_of(self.ledger, gpu)

    @property
    def gpus(self) -> tuple[GpuReading, ...]:
        """The GPUs of this reading; none where NVML did not answer."""
        return self.reading.nvml.gpus if isinstance(self.reading.nvml, Nvml) else ()

    @property
    def pods(self) -> tuple[EnginePod, ...]:
        """The engine pods of this reading; none where they were not read."""
        return () if isinstance(self.reading.pods, Missing) else self.reading.pods


def view_of(
    reading: NodeReading,
    history: Sequence[NodeReading],
    ledger: Ledger,
    overrides: Mapping[str, CheckOverride],
    own_caps: Mapping[str, int],
) -> View:
    """The view of one poll. Readings of another boot, and those that are not older than this one, are left out."""
    reading = replace(reading, nvml=_promised(reading))
    return View(reading, (*_earlier(reading, history), _moment(reading, 0)), ledger, overrides, own_caps)


def _promised(reading: NodeReading) -> Nvml | Missing:
    """NVML as it was read; where GPUs are promised and it is not there, they are there and cannot be seen."""
    nvml, promised = reading.nvml, reading.expected_gpus
    if isinstance(nvml, Nvml) or nvml.absence is Absence.UNKNOWN or isinstance(promised, Missing) or promised == 0:
        return nvml
    are = "GPU is" if promised == 1 else "GPUs are"
    return Missing(Absence.UNKNOWN, f"{promised} {are} promised and NVML is not there ({nvml.why}); {_NO_LIBRARY}")


def _earlier(reading: NodeReading, history: Sequence[NodeReading]) -> Iterable[Moment]:
    if not math.isfinite(reading.monotonic):
        return
    now = _ns(reading.monotonic)
    for earlier in history:
        same_boot = earlier.host.boot_id == reading.host.boot_id or Missing in (
            type(earlier.host.boot_id),
            type(reading.host.boot_id),
        )
        if same_boot and math.isfinite(earlier.monotonic) and (age := now - _ns(earlier.monotonic)) > 0:
            yield _moment(earlier, age)


def _ns(monotonic: float) -> int:
    """Whole nanoseconds, so that nothing is decided in floating point."""
    return round(Fraction(monotonic) * NS)


def _moment(reading: NodeReading, age_ns: int) -> Moment:
    gpus: dict[str, GpuReading] = {}
    if isinstance(reading.nvml, Nvml):
        for gpu in reading.nvml.gpus:
            gpus[gpu.subject] = gpu
            gpus[gpu.uuid] = gpu
    pods = {} if isinstance(reading.pods, Missing) else {pod_key(pod): pod for pod in reading.pods}
    return Moment(age_ns, reading, gpus, pods)


def each_gpu(judge: GpuJudge) -> Judge:
    """A check of every GPU. Where NVML does not answer, every GPU that is known is not known about."""

    def judged(view: View, check: Check) -> Iterable[Verdict]:
        nvml = view.reading.nvml
        if isinstance(nvml, Missing):
            cards = view.ledger.cards.values()
            if not cards:
                return (absent(HOST, nvml, "NVML"),)
            return tuple(
                replace(absent(card.subject, nvml, "NVML"), holder=card.uuid or card.subject) for card in cards
            )
        if not nvml.gpus:
            return (unsupported(HOST, "NVML lists no GPU on this machine"),)
        return tuple(replace(judge(view, check, gpu), holder=view.holder(gpu)) for gpu in nvml.gpus)

    return judged


def unless_lost(judge: GpuJudge) -> GpuJudge:
    """A check of a GPU that answers: of a lost one nothing can be read, and gpu.lost says so."""

    def judged(view: View, check: Check, gpu: GpuReading) -> Verdict:
        if gpu.lost:
            return unknown(gpu.subject, "the GPU is lost: see gpu.lost")
        return judge(view, check, gpu)

    return judged


def pod_key(pod: EnginePod) -> str:
    """What readings and standings of a pod are kept by: a new pod of the same name starts anew."""
    return pod.uid or pod.subject


def each_pod(judge: PodJudge) -> Judge:
    """A check of every engine pod."""

    def judged(view: View, check: Check) -> Iterable[Verdict]:
        if isinstance(view.reading.pods, Missing):
            return (absent(HOST, view.reading.pods, "engine pods"),)
        if not view.reading.pods:
            return (unsupported(HOST, "no engine pod is on this node"),)
        return tuple(replace(judge(view, check, pod), holder=pod_key(pod)) for pod in view.reading.pods)

    return judged


def of_host(judge: Callable[[View, Check], Verdict]) -> Judge:
    """A check of the host as a whole."""
    return lambda view, check: (judge(view, check),)


def exact(value: float) -> Fraction | Missing:
    """A float that was read, as the decimal that it was written as; Missing where it is no number."""
    if not math.isfinite(value):
        return Missing(Absence.UNKNOWN, f"{value} is not a number")
    return Fraction(str(value))


def share_of_percent(value: float) -> Fraction | Missing:
    """A percentage that was read, as a share."""
    number = exact(value)
    return number if isinstance(number, Missing) else number / _PERCENT
