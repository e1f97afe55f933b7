"""The path between NICs and GPU memory: nvidia-peermem, DMA-BUF, and the ports of the NICs."""

from __future__ import annotations

import re
import zlib
from fractions import Fraction
from pathlib import Path
from typing import Final

from hisparse_agent.readers.kernel_files import (
    LIMIT,
    list_names,
    read_bytes,
    read_number,
    read_text,
    read_value,
    unknown,
)
from hisparse_agent.readers.settings import read_kernel, read_modules
from hisparse_agent.readings import Absence, Missing, Nic, Number, Rdma, Switch, Text

DMA_BUF_KERNEL: Final = (5, 12)
"""First Linux whose RDMA takes GPU memory as DMA-BUF."""

PEERMEM_MODULES: Final = frozenset({"nvidia_peermem", "nv_peer_mem"})
"""The driver's own, and the one that it replaced."""

PEERMEM_CLIENTS: Final = frozenset({"nv_mem", "nv_mem_nc"})
"""Names under which these modules register; loaded is not registered."""

_RELEASE = re.compile(r"([0-9]{1,3})\.([0-9]{1,4})(?:[^0-9].*)?", re.ASCII)
_BACKPORTS = re.compile(r"\.el[0-9]", re.ASCII)
_P2PDMA = re.compile(r"^(?:CONFIG_PCI_P2PDMA=(?P<on>y)|# CONFIG_PCI_P2PDMA is not set)$", re.ASCII | re.MULTILINE)
_PORT = re.compile(r"[0-9]{1,3}", re.ASCII)
_STATE = re.compile(r"[0-9]{1,2}: [A-Za-z_ ]{1,40}", re.ASCII)
_RATE = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,3})?) Gb/sec \(.{1,40}\)", re.ASCII)
_GIGABIT: Final = 10**9
_GZIP: Final = 16 + zlib.MAX_WBITS


def read_rdma(root: Path, *, declared: bool) -> Rdma:
    """What is below `root`, whether or not a connector of an engine is declared to need it."""
    modules = read_modules(root)
    return Rdma(
        declared=declared,
        peermem_loaded=modules if isinstance(modules, Missing) else bool(modules & PEERMEM_MODULES),
        peermem_registered=_registered(root / "sys/kernel/mm"),
        dma_buf=_dma_buf(root),
        nics=_nics(root / "sys/class"),
    )


def _registered(folder: Path) -> Switch:
    """Without an RDMA stack that takes peer memory the folder is not there, and nothing can be registered."""
    names = list_names(folder / "memory_peers", beside=folder)
    if isinstance(names, Missing):
        return False if names.absence is Absence.UNSUPPORTED else names
    return bool(PEERMEM_CLIENTS & set(names))


def _dma_buf(root: Path) -> Switch:
    """Whether the kernel has it: Linux 5.12 or newer with PCI_P2PDMA built in. The driver must be the open one too.

    Enterprise kernels call themselves older than the RDMA code that they carry: UNKNOWN.
    """
    release = read_kernel(root)
    if isinstance(release, Missing):
        return release
    match = _RELEASE.fullmatch(release)
    if match is None:
        return Missing(Absence.UNKNOWN, f"the kernel's release {release[:60]!r} does not begin with its version")
    if (int(match[1]), int(match[2])) < DMA_BUF_KERNEL:
        if _BACKPORTS.search(release):
            return Missing(Absence.UNKNOWN, f"kernel {release} may carry newer RDMA code than its version says")
        return False
    config = _config(root, release)
    if isinstance(config, Missing):
        return config
    line = _P2PDMA.search(config)
    if line is None:
        return Missing(Absence.UNKNOWN, f"the configuration of kernel {release} does not speak of PCI_P2PDMA")
    return line["on"] is not None


def _config(root: Path, release: str) -> Text:
    """The kernel's configuration, from the first place that has it."""
    packed = root / "proc/config.gz"
    content = read_bytes(packed)
    if isinstance(content, bytes):
        return _unpacked(packed, content)
    # a release is a file name here: it must not lead elsewhere
    places = [root / f"boot/config-{release}", root / f"lib/modules/{release}/config"] if "/" not in release else []
    for place in places:
        text = read_text(place)
        if isinstance(text, str):
            return text
    sought = ", ".join(str(place) for place in (packed, *places))
    return Missing(Absence.UNKNOWN, f"the kernel's configuration is in none of {sought}")


def _unpacked(path: Path, content: bytes) -> Text:
    unpacker = zlib.decompressobj(wbits=_GZIP)
    try:
        text = unpacker.decompress(content, LIMIT)
    except zlib.error:
        return unknown(path, "is not compressed text")
    # `eof` is set once the checksum at the end was right
    if not unpacker.eof:
        return unknown(path, "was cut, or is too long")
    return text.decode(errors="replace")


def _nics(folder: Path) -> tuple[Nic, ...] | Missing:
    devices = list_names(folder / "infiniband", beside=folder)
    if isinstance(devices, Missing):
        return devices
    nics: list[Nic] = []
    for device in devices:
        ports = list_names(folder / "infiniband" / device / "ports")
        if isinstance(ports, Missing):
            return ports
        numbers = sorted(int(port) for port in ports if _PORT.fullmatch(port))
        nics += [_nic(folder / "infiniband" / device / "ports" / str(number), device, number) for number in numbers]
    return tuple(nics)


def _nic(folder: Path, device: str, port: int) -> Nic:
    """link_downed has 8 bits by the InfiniBand specification and stays at 255. Some NICs have no such counters."""
    return Nic(
        name=device,
        port=port,
        state=_word(folder / "state"),
        rate=_rate(folder / "rate"),
        link_downed=read_number(folder / "counters/link_downed", beside=folder / "state"),
    )


def _word(path: Path) -> Text:
    """ACTIVE of "4: ACTIVE"."""
    value = read_value(path, _STATE)
    return value if isinstance(value, Missing) else value.partition(": ")[2]


def _rate(path: Path) -> Number:
    """Bits per second of "400 Gb/sec (4X NDR)"."""
    value = read_value(path, _RATE)
    return value if isinstance(value, Missing) else int(Fraction(value.partition(" ")[0]) * _GIGABIT)
