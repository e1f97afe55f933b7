"""The path between NICs and GPU memory."""

import gzip
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hisparse_agent.readers.rdma import read_rdma
from hisparse_agent.readings import Absence, Missing, Nic, Rdma

HOSTS = Path(__file__).parents[1] / "data" / "host"
CONFIG = "boot/config-6.8.0-87-generic"
PORT = "sys/class/infiniband/mlx5_0/ports/1"
ON = "CONFIG_PCI=y\nCONFIG_PCI_P2PDMA=y\n"
OFF = "CONFIG_PCI=y\n# CONFIG_PCI_P2PDMA is not set\n"


@pytest.fixture
def server(tmp_path: Path) -> Path:
    return Path(shutil.copytree(HOSTS / "server-2tib", tmp_path / "host"))


@pytest.fixture(scope="session")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(HOSTS / "server-2tib", tmp_path_factory.mktemp("rdma") / "host"))


def read(root: Path) -> Rdma:
    return read_rdma(root, declared=True)


def absence(value: object) -> Absence | None:
    return value.absence if isinstance(value, Missing) else None


def test_a_server_is_read() -> None:
    rdma = read(HOSTS / "server-2tib")
    assert (rdma.declared, rdma.peermem_loaded, rdma.peermem_registered, rdma.dma_buf) == (True, True, True, True)
    assert isinstance(rdma.nics, tuple)
    assert rdma.nics[:3] == (
        Nic("mlx5_0", 1, "ACTIVE", 400 * 10**9, 0),
        Nic("mlx5_1", 1, "ACTIVE", 200 * 10**9, 255),
        Nic("mlx5_2", 1, "DOWN", 2_500_000_000, 3),
    )
    other = rdma.nics[3]
    assert (other.name, other.rate, absence(other.link_downed)) == ("rdmap0", 100 * 10**9, Absence.UNSUPPORTED)


def test_declared_is_passed_through() -> None:
    assert read_rdma(HOSTS / "server-2tib", declared=False).declared is False


def test_a_machine_without_rdma_says_so() -> None:
    rdma = read(HOSTS / "h200-vm")
    assert rdma.peermem_loaded is False
    assert rdma.peermem_registered is False
    assert absence(rdma.nics) is Absence.UNSUPPORTED


def test_nothing_mounted_is_unknown_everywhere(tmp_path: Path) -> None:
    rdma = read(tmp_path)
    values = (rdma.peermem_loaded, rdma.peermem_registered, rdma.dma_buf, rdma.nics)
    assert all(absence(value) is Absence.UNKNOWN for value in values)


def test_loaded_is_not_registered(server: Path) -> None:
    shutil.rmtree(server / "sys/kernel/mm/memory_peers/nv_mem")
    rdma = read(server)
    assert rdma.peermem_loaded is True
    assert rdma.peermem_registered is False


@pytest.mark.parametrize(
    ("release", "config", "answer"),
    [
        pytest.param("6.8.0-87-generic", ON, True, id="new and built in"),
        pytest.param("6.8.0-87-generic", OFF, False, id="new and not built in"),
        pytest.param("6.8.0-87-generic", "CONFIG_PCI=y\n", Absence.UNKNOWN, id="new and not spoken of"),
        pytest.param("6.8.0-87-generic", "XCONFIG_PCI_P2PDMA=y\n", Absence.UNKNOWN, id="the name inside another"),
        pytest.param("6.8.0-87-generic", None, Absence.UNKNOWN, id="new and no configuration to be had"),
        pytest.param("5.12.0", ON, True, id="the first version"),
        pytest.param("5.11.22", ON, False, id="the version before"),
        pytest.param("5.4.0-150-generic", None, False, id="an old kernel needs no configuration"),
        pytest.param("4.18.0-553.el8_10.x86_64", None, Absence.UNKNOWN, id="an old number with newer RDMA code"),
        pytest.param("5.14.0-570.el9.x86_64", ON, True, id="an enterprise kernel that is new enough"),
        pytest.param("6", ON, Absence.UNKNOWN, id="half a version"),
        pytest.param("next", ON, Absence.UNKNOWN, id="no version"),
        pytest.param("6.8/../../../etc", ON, Absence.UNKNOWN, id="a release that leads elsewhere"),
    ],
)
def test_dma_buf(server: Path, release: str, config: str | None, answer: bool | Absence) -> None:
    (server / CONFIG).unlink()
    (server / "proc/sys/kernel/osrelease").write_text(f"{release}\n")
    if config is not None and "/" not in release:
        (server / f"boot/config-{release}").write_text(config)
    dma_buf = read(server).dma_buf
    assert dma_buf is answer or absence(dma_buf) is answer


def test_the_running_kernels_own_configuration_comes_first(server: Path) -> None:
    (server / "proc/config.gz").write_bytes(gzip.compress(OFF.encode()))
    assert read(server).dma_buf is False


def test_the_modules_folder_is_the_last_place(server: Path) -> None:
    (server / CONFIG).unlink()
    (server / "lib/modules/6.8.0-87-generic").mkdir(parents=True)
    (server / "lib/modules/6.8.0-87-generic/config").write_text(OFF)
    assert read(server).dma_buf is False


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(ON.encode(), id="not compressed"),
        pytest.param(gzip.compress(ON.encode())[:-9], id="cut"),
        pytest.param(gzip.compress(ON.encode())[:-4] + b"\0\0\0\0", id="of another length than it says"),
        pytest.param(gzip.compress(ON.encode() + b"#" * 2**21), id="a bomb"),
    ],
)
def test_a_broken_configuration_is_unknown(server: Path, content: bytes) -> None:
    (server / "proc/config.gz").write_bytes(content)
    assert absence(read(server).dma_buf) is Absence.UNKNOWN


@pytest.mark.parametrize(
    ("file", "field"),
    [("state", "state"), ("rate", "rate"), ("counters/link_downed", "link_downed")],
)
@pytest.mark.parametrize("text", ["", "strange\n", "4: ACTIVE", "400 Gb/sec\n", "-1\n", None])
def test_an_unreadable_file_of_a_port_makes_its_own_value_unknown(
    server: Path, file: str, field: str, text: str | None
) -> None:
    path = server / PORT / file
    path.unlink()
    if text is None:
        path.mkdir()
    else:
        path.write_text(text)
    nics, whole = read(server).nics, read(HOSTS / "server-2tib").nics
    assert isinstance(nics, tuple)
    assert isinstance(whole, tuple)
    assert absence(getattr(nics[0], field)) is Absence.UNKNOWN
    others = set(Nic.__dataclass_fields__) - {field}
    assert all(getattr(nics[0], name) == getattr(whole[0], name) for name in others)
    assert nics[1:3] == whole[1:3]


def test_devices_behind_links_that_were_not_mounted_are_unknown(server: Path) -> None:
    shutil.rmtree(server / "sys/class/infiniband/mlx5_0")
    (server / "sys/class/infiniband/mlx5_0").symlink_to("../../devices/elsewhere")
    assert absence(read(server).nics) is Absence.UNKNOWN


def test_this_machine_is_read() -> None:
    rdma = read(Path("/"))
    for value in (rdma.peermem_loaded, rdma.peermem_registered, rdma.dma_buf, rdma.nics):
        assert not isinstance(value, Missing) or value.why
    if Path("/sys/class").is_dir() and not Path("/sys/class/infiniband").is_dir():
        assert absence(rdma.nics) is Absence.UNSUPPORTED


FILES = st.sampled_from(
    [CONFIG, "proc/config.gz", "proc/modules", "proc/sys/kernel/osrelease", f"{PORT}/state", f"{PORT}/rate"]
)


@given(file=FILES, content=st.binary(max_size=200) | st.text(max_size=80).map(lambda text: f"{text}\n".encode()))
def test_no_content_makes_it_raise(fuzzed: Path, file: str, content: bytes) -> None:
    path = fuzzed / file
    original = path.read_bytes() if path.exists() else None
    path.write_bytes(content)
    try:
        rdma = read(fuzzed)
    finally:
        path.unlink() if original is None else path.write_bytes(original)
    assert isinstance(rdma, Rdma)
