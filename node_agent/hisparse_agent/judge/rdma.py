"""The path from NICs to GPU memory. It matters only where an engine declares an RDMA connector.

| connector | kernel module | what is needed | verdict |
| --- | --- | --- | --- |
| none | any | nothing: offload to the memory of the same host uses neither | Unsupported, NotNeeded |
| declared | open, kernel with DMA-BUF | nothing more | Ok without nvidia-peermem |
| declared | closed, or a kernel without DMA-BUF | nvidia-peermem, registered | Ok where it is, else Warn |

Loaded is not registered: the module may be there and the RDMA stack may not take it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from hisparse.nodes.catalogue import Check
from hisparse.nodes.findings import State
from hisparse_agent.judge.verdict import HOST, NOT_NEEDED, Verdict, absent, fine, unsupported
from hisparse_agent.judge.view import Judge, View, of_host
from hisparse_agent.readings import Missing, Nic, Rdma

_NO_CONNECTOR: Final = (
    "nvidia-peermem is not needed: no engine on this node declares an RDMA connector, "
    "and KV offload to the host's own memory does not use it"
)


def _path(view: View, _row: Check) -> Verdict:
    rdma = view.reading.rdma
    if isinstance(rdma, Missing):
        return absent(HOST, rdma, "RDMA")
    if not rdma.declared:
        return unsupported(HOST, _NO_CONNECTOR, reason=NOT_NEEDED)
    open_module = view.reading.host.open_module
    if open_module is True and rdma.dma_buf is True:
        return fine(HOST, "the open kernel module and DMA-BUF are there: nvidia-peermem is not needed")
    if rdma.peermem_registered is True:
        return fine(HOST, "nvidia-peermem is registered with the RDMA stack")
    if isinstance(rdma.peermem_registered, Missing):
        return absent(HOST, rdma.peermem_registered, "whether nvidia-peermem is registered")
    if isinstance(open_module, Missing):
        return absent(HOST, open_module, "kind of the kernel module")
    if open_module and isinstance(rdma.dma_buf, Missing):
        return absent(HOST, rdma.dma_buf, "DMA-BUF support of the kernel")
    why = (
        "the kernel has no DMA-BUF for peers (5.12 or newer)" if open_module else "the kernel module is the closed one"
    )
    return Verdict(HOST, State.WARN, f"{why} and nvidia-peermem {_peermem(rdma)}")


def _peermem(rdma: Rdma) -> str:
    if rdma.peermem_loaded is True:
        return "is loaded but not registered: the RDMA stack does not take it"
    return "is not registered"


def is_up(nic: Nic) -> bool | Missing:
    """Whether a port is up; ACTIVE_DEFER is, too."""
    return nic.state if isinstance(nic.state, Missing) else nic.state.startswith("ACTIVE")


def nic_subject(nic: Nic) -> str:
    """What a finding about a port names."""
    return f"nic-{nic.name}:{nic.port}"


def _nics(view: View, _row: Check) -> Iterable[Verdict]:
    rdma = view.reading.rdma
    if isinstance(rdma, Missing):
        return (absent(HOST, rdma, "RDMA"),)
    if not rdma.declared:
        return (unsupported(HOST, "no engine on this node declares an RDMA connector", reason=NOT_NEEDED),)
    if isinstance(rdma.nics, Missing):
        return (absent(HOST, rdma.nics, "RDMA ports"),)
    if not rdma.nics:
        return (unsupported(HOST, "the machine has no RDMA port"),)
    return tuple(_nic(view, nic) for nic in rdma.nics)


def _nic(view: View, nic: Nic) -> Verdict:
    subject = nic_subject(nic)
    up = is_up(nic)
    if isinstance(up, Missing):
        return absent(subject, up, "state of the port")
    best = view.ledger.nic_rates.get(subject)
    if not up:
        if best is None:
            return unsupported(
                subject, f"the port is {nic.state} and was never up since it is watched: taken for unused"
            )
        downs = "" if isinstance(nic.link_downed, Missing) else f" (link_downed {nic.link_downed})"
        return Verdict(subject, State.CRITICAL, f"the port is {nic.state} and was up before{downs}", "down", "up")
    if isinstance(nic.rate, Missing):
        return absent(subject, nic.rate, "rate of the port")
    best = max(best or 0, nic.rate)
    message = f"the port is up at {nic.rate // 10**9} of {best // 10**9} Gbit/s"
    state = State.OK if nic.rate >= best else State.WARN
    return Verdict(subject, state, message, f"{nic.rate // 10**9} Gbit/s", f"{best // 10**9} Gbit/s")


JUDGES: Final[Mapping[str, Judge]] = MappingProxyType(
    {
        "rdma.path": of_host(_path),
        "rdma.nic": _nics,
    }
)
