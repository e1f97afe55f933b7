"""`HiSparseNode`: what the agent reports of its node. Cluster scoped, named as the node, status only.

Values that change all the time are metrics and not here. A report older than `STALE_SECONDS` reads as Unknown.
"""

from typing import Annotated, Final

from pydantic import Field

from hisparse.nodes.findings import State
from hisparse.status import Reported

KIND: Final = "HiSparseNode"
PLURAL: Final = "hisparsenodes"
HEARTBEAT_SECONDS: Final = 300
STALE_SECONDS: Final = 900
MOST_FINDINGS: Final = 512
MOST_ACTIONS: Final = 64


class FindingStatus(Reported):
    """One check on one subject."""

    check: str
    """The check, as in the catalogue."""
    subject: str
    """What was judged: gpu-3, numa-0, nic-NAME:PORT, pod-NAMESPACE/NAME or host."""
    state: State
    """Ok, Warn, Critical, Unknown (not read) or Unsupported (not there, or hidden)."""
    since: str
    """When the state began."""
    reason: str
    """One word for scripts."""
    message: str
    """What was found, against which limit, and the next step."""
    value: str | None = None
    """What was found."""
    limit: str | None = None
    """From where it is a fault."""
    unit: str | None = None
    """Unit of value and limit."""


class GpuInventory(Reported):
    """One GPU of the node."""

    index: int
    """As NVML counts."""
    product: str
    """As NVML names it."""
    uuid: str
    """Its UUID."""
    memory: str | None = None
    """Its memory, as a quantity."""
    pci_gen: int | None = None
    """PCIe generation of its link."""
    pci_width: int | None = None
    """PCIe lanes of its link."""
    nvlinks: int | None = None
    """NVLink ports that are active."""
    numa_node: int | None = None
    """NUMA node next to it; absent where the machine does not tell."""


class Inventory(Reported):
    """What the node is made of."""

    gpus: list[GpuInventory] | None = None
    """Its GPUs."""
    driver: str | None = None
    """Version of the NVIDIA driver."""
    cuda: str | None = None
    """Newest CUDA that the driver takes."""
    kernel: str | None = None
    """Version of the kernel."""
    host_memory: str | None = None
    """Memory of the host."""
    host_memory_by_numa: list[str] | None = None
    """Memory of each NUMA node, in order."""
    boot_id: str | None = None
    """Changes with every boot."""


class ActionStatus(Reported):
    """A change of host state that is in force, or was refused or put back last."""

    id: str
    """Its name in the record on the host."""
    verb: str
    """power-cap, sysctl or cpufreq."""
    target: str
    """What was changed: gpu-3, vm.swappiness, cpu."""
    old: str | None = None
    """Value before it."""
    new: str
    """Value that it sets."""
    phase: str
    """Wanted, InForce, Reverted, Refused, Foreign (somebody else changed the value since) or RevertFailed."""
    reason: str
    """The finding that asked for it."""
    policy: str
    """The HiSparseNodePolicy that allows it."""
    since: str | None = None
    """When it was made."""
    ttl: str | None = None
    """How long it stays at most."""
    message: str | None = None
    """What happened, where it is not plain."""


class NodeConditionStatus(Reported):
    """A condition of the report itself."""

    type: str
    """Healthy, Observed, Muted, PolicyAccepted or PutBack."""
    status: str
    """True, False or Unknown."""
    reason: str
    """One word for scripts."""
    message: str
    """A sentence for people."""
    last_transition_time: str
    """When status changed last."""


class HiSparseNodeStatus(Reported):
    """Findings of the node agent, what the node is made of, and the actions in force."""

    state: State | None = None
    """The worst of the findings."""
    faults: int | None = None
    """Findings that are a fault: Warn or Critical."""
    gpus: int | None = None
    """GPUs that the agent sees."""
    findings: Annotated[list[FindingStatus], Field(max_length=MOST_FINDINGS)] | None = None
    """Every check on every subject, faults first."""
    inventory: Inventory | None = None
    """What the node is made of."""
    actions: Annotated[list[ActionStatus], Field(max_length=MOST_ACTIONS)] | None = None
    """Changes of host state, and how each may be put back."""
    policy: str | None = None
    """The HiSparseNodePolicy in force; absent where none selects the node."""
    observed_at: str | None = None
    """When the agent reported last; older than 15 minutes reads as Unknown."""
    agent_version: str | None = None
    """Version of the agent."""
    conditions: list[NodeConditionStatus] | None = None
    """Conditions of the report."""
