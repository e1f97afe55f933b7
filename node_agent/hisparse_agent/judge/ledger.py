"""What the judge carries from one reading to the next. It is data: the caller keeps it and hands it back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from hisparse.nodes.findings import Finding
from hisparse_agent.judge.standing import Standing
from hisparse_agent.readings import GpuReading, NodeReading, NvLink, Nvml


@dataclass(frozen=True)
class Card:
    """A GPU as it was seen last."""

    uuid: str
    subject: str
    pci: str


@dataclass(frozen=True)
class LinkBaseline:
    """The most NVLink ports that were ever active on a card, and the fastest of them in bytes/s of one direction."""

    active: int
    bytes_per_second: int


@dataclass(frozen=True)
class Ledger:
    """Standings by check and holder, and what was learned about the parts of this node.

    Standings are of one boot. What was learned outlives it: a port that is missing after a boot was there before.
    """

    boot_id: str = ""
    standings: Mapping[tuple[str, str], Standing] = field(default_factory=lambda: MappingProxyType({}))
    cards: Mapping[str, Card] = field(default_factory=lambda: MappingProxyType({}))
    """By subject."""
    links: Mapping[str, LinkBaseline] = field(default_factory=lambda: MappingProxyType({}))
    """By UUID."""
    nic_rates: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    """The best rate of a port while it was up, in bits/s, by subject."""
    findings: tuple[Finding, ...] = ()
    """What was told last."""

    def forget(self, check: str, holder: str) -> Ledger:
        """Without what is held against a subject: a person has looked at it."""
        kept = {key: standing for key, standing in self.standings.items() if key != (check, holder)}
        return replace(self, standings=MappingProxyType(kept))


def in_this_boot(ledger: Ledger, reading: NodeReading) -> Ledger:
    """The ledger for a reading: standings of another boot are gone, and cards are those that were seen last."""
    boot_id = reading.host.boot_id
    if isinstance(boot_id, str) and boot_id != ledger.boot_id:
        fresh = {} if ledger.boot_id else ledger.standings
        ledger = replace(ledger, boot_id=boot_id, standings=MappingProxyType(dict(fresh)))
    return ledger


def learned(ledger: Ledger, reading: NodeReading) -> Ledger:
    """The ledger with what this reading teaches."""
    if isinstance(reading.nvml, Nvml):
        cards = {
            gpu.subject: Card(gpu.uuid or _known_uuid(ledger, gpu), gpu.subject, gpu.pci or _known_pci(ledger, gpu))
            for gpu in reading.nvml.gpus
        }
        links = dict(ledger.links)
        for gpu in reading.nvml.gpus:
            if gpu.uuid and isinstance(gpu.links, tuple):
                links[gpu.uuid] = _better(links.get(gpu.uuid), gpu.links)
        ledger = replace(ledger, cards=MappingProxyType(cards), links=MappingProxyType(links))
    return ledger


def uuid_of(ledger: Ledger, gpu: GpuReading) -> str:
    """A GPU's UUID, from earlier readings where it does not tell; its subject where nobody knows."""
    return gpu.uuid or _known_uuid(ledger, gpu) or gpu.subject


def _known_uuid(ledger: Ledger, gpu: GpuReading) -> str:
    card = ledger.cards.get(gpu.subject)
    return card.uuid if card else ""


def _known_pci(ledger: Ledger, gpu: GpuReading) -> str:
    card = ledger.cards.get(gpu.subject)
    return card.pci if card else ""


def _better(known: LinkBaseline | None, links: tuple[NvLink, ...]) -> LinkBaseline:
    active = [link for link in links if link.is_active]
    fastest = max((link.bytes_per_second for link in active if isinstance(link.bytes_per_second, int)), default=0)
    if known is None:
        return LinkBaseline(len(active), fastest)
    return LinkBaseline(max(known.active, len(active)), max(known.bytes_per_second, fastest))
