"""NUMA nodes of GPUs."""

import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hisparse_agent.readers.pci import count_gpus, read_numa_node
from hisparse_agent.readings import Absence, Missing

HOSTS = Path(__file__).parents[1] / "data" / "host"
GPU = "0000:1b:00.0"


@pytest.fixture
def server(tmp_path: Path) -> Path:
    return Path(shutil.copytree(HOSTS / "server-2tib", tmp_path / "host"))


@pytest.fixture(scope="session")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(HOSTS / "server-2tib", tmp_path_factory.mktemp("pci") / "host"))


def absence(value: object) -> Absence | None:
    return value.absence if isinstance(value, Missing) else None


@pytest.mark.parametrize(("pci", "node"), [(GPU, 0), ("0000:9b:00.0", 1)])
def test_a_gpu_hangs_on_the_node_that_sysfs_says(pci: str, node: int) -> None:
    assert read_numa_node(HOSTS / "server-2tib", pci) == node


@pytest.mark.parametrize(("host", "pci"), [("server-2tib", "0000:c1:00.0"), ("h200-vm", "0000:00:03.0")])
def test_minus_one_is_unknown_and_not_node_0(host: str, pci: str) -> None:
    node = read_numa_node(HOSTS / host, pci)
    assert isinstance(node, Missing)
    assert node.absence is Absence.UNKNOWN
    assert "-1" in node.why


def test_a_kernel_without_numa_does_not_support_it(server: Path) -> None:
    (server / "sys/bus/pci/devices" / GPU / "numa_node").unlink()
    (server / "sys/bus/pci/devices" / GPU / "vendor").write_text("0x10de\n")
    assert absence(read_numa_node(server, GPU)) is Absence.UNSUPPORTED


@pytest.mark.parametrize(
    "pci", ["0000:ff:00.0", "00000000:1B:00.0", "0000:1B:00.0", "1b:00.0", "", "../../..", "0000:1b:00.0/", "\0"]
)
def test_an_address_that_is_not_there_or_none_is_unknown(pci: str) -> None:
    assert absence(read_numa_node(HOSTS / "server-2tib", pci)) is Absence.UNKNOWN


@pytest.mark.parametrize("text", ["", "-2\n", "0", "1 2\n", "0x0\n", "none\n", "99999\n", "\x00\n"])
def test_a_strange_number_is_unknown(server: Path, text: str) -> None:
    (server / "sys/bus/pci/devices" / GPU / "numa_node").write_text(text)
    assert absence(read_numa_node(server, GPU)) is Absence.UNKNOWN


def test_a_folder_and_a_link_to_nowhere_are_unknown(server: Path) -> None:
    path = server / "sys/bus/pci/devices" / GPU / "numa_node"
    path.unlink()
    path.mkdir()
    assert absence(read_numa_node(server, GPU)) is Absence.UNKNOWN
    path.rmdir()
    path.symlink_to("nowhere")
    assert absence(read_numa_node(server, GPU)) is Absence.UNKNOWN


def test_a_device_behind_a_link_that_was_not_mounted_is_unknown(server: Path) -> None:
    devices = server / "sys/bus/pci/devices"
    shutil.rmtree(devices / GPU)
    (devices / GPU).symlink_to("../../../devices/pci0000:1b/0000:1b:00.0")
    assert absence(read_numa_node(server, GPU)) is Absence.UNKNOWN


def device(root: Path, address: str, vendor: str, kind: str) -> Path:
    folder = root / "sys/bus/pci/devices" / address
    folder.mkdir(parents=True)
    (folder / "vendor").write_text(f"{vendor}\n")
    (folder / "class").write_text(f"{kind}\n")
    return folder


def test_gpus_are_counted_without_their_driver(tmp_path: Path) -> None:
    device(tmp_path, "0000:00:02.0", "0x8086", "0x030000")
    assert count_gpus(tmp_path) == 0
    device(tmp_path, "0000:1b:00.0", "0x10de", "0x030200")
    device(tmp_path, "0000:1c:00.0", "0x10de", "0x030000")
    device(tmp_path, "0000:1c:00.1", "0x10de", "0x040300")
    device(tmp_path, "0000:07:00.0", "0x10de", "0x068000")
    assert count_gpus(tmp_path) == 2


def test_what_cannot_be_counted_is_said(tmp_path: Path) -> None:
    assert absence(count_gpus(tmp_path)) is Absence.UNKNOWN
    (tmp_path / "sys/bus").mkdir(parents=True)
    assert absence(count_gpus(tmp_path)) is Absence.UNSUPPORTED
    folder = device(tmp_path, "0000:1b:00.0", "0x10de", "0x030200")
    (folder / "class").write_text("display\n")
    assert absence(count_gpus(tmp_path)) is Absence.UNKNOWN
    (folder / "vendor").unlink()
    assert absence(count_gpus(tmp_path)) is Absence.UNKNOWN


@pytest.mark.skipif(not Path("/sys/bus/pci/devices").is_dir(), reason="this machine has no PCI bus")
def test_this_machine_is_read() -> None:
    for device in sorted(Path("/sys/bus/pci/devices").iterdir()):
        node = read_numa_node(Path("/"), device.name)
        assert isinstance(node, Missing) or Path(f"/sys/devices/system/node/node{node}").is_dir()


@given(content=st.binary(max_size=30) | st.integers().map(lambda number: f"{number}\n".encode()), pci=st.text())
def test_nothing_makes_it_raise(fuzzed: Path, content: bytes, pci: str) -> None:
    (fuzzed / "sys/bus/pci/devices" / GPU / "numa_node").write_bytes(content)
    node = read_numa_node(fuzzed, GPU)
    assert isinstance(node, Missing) or f"{node}".encode() in content
    assert isinstance(read_numa_node(fuzzed, pci), Missing | int)
