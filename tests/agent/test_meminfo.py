"""Memory of the host, from trees of /proc and /sys and from this machine."""

import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hisparse_agent.readers.meminfo import read_memory
from hisparse_agent.readings import Absence, Memory, Missing, NumaNode, Pressure

HOSTS = Path(__file__).parents[1] / "data" / "host"
KIB = 1024

Change = tuple[int, int, bytes]
CHANGES = st.tuples(st.integers(0, 4000), st.integers(0, 4000), st.binary(max_size=12))


@pytest.fixture
def server(tmp_path: Path) -> Path:
    return Path(shutil.copytree(HOSTS / "server-2tib", tmp_path / "host"))


@pytest.fixture(scope="session")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(HOSTS / "server-2tib", tmp_path_factory.mktemp("memory") / "host"))


def spoil(path: Path, how: str) -> None:
    """Make a file unreadable in a way that root cannot read past either."""
    content = path.read_bytes()
    path.unlink()
    if how == "a folder in its place":
        path.mkdir()
    elif how == "a link to nowhere":
        path.symlink_to("nowhere")
    elif how == "empty":
        path.touch()
    elif how == "cut":
        path.write_bytes(content[: content.index(b"\n") - 3])
    elif how == "binary":
        path.write_bytes(b"\x00\xff\xfe" + content)
    elif how == "endless":
        path.write_bytes(content + b"x 1\n" * 2**19)
    else:
        path.write_text(how)


WAYS = ["a folder in its place", "a link to nowhere", "empty", "cut", "binary", "endless", "not numbers at all\n"]


def unknown(value: object) -> bool:
    return isinstance(value, Missing) and value.absence is Absence.UNKNOWN


def unsupported(value: object) -> bool:
    return isinstance(value, Missing) and value.absence is Absence.UNSUPPORTED


def test_a_server_with_two_nodes_is_read_in_bytes() -> None:
    memory = read_memory(HOSTS / "server-2tib")
    assert memory.total == 2063476562 * KIB
    assert memory.available == 1237319680 * KIB
    assert memory.shmem == 650117120 * KIB
    assert (memory.swap_total, memory.swap_free, memory.swap_in, memory.swap_out) == (0, 0, 0, 0)
    assert memory.major_faults == 48213
    assert memory.pressure == Pressure(some=1.75, full=0.25)
    assert memory.nodes == (
        NumaNode(
            index=0,
            total=1031738281 * KIB,
            free=73400320 * KIB,
            file_cache=(52428800 + 109051904) * KIB,
            pinned_pages=2 * 550117120 // 4,
        ),
        NumaNode(
            index=1,
            total=1031738281 * KIB,
            free=870318080 * KIB,
            file_cache=(52428800 + 111149056) * KIB,
            pinned_pages=2 * 100000000 // 4,
        ),
    )


def test_pins_of_a_pool_that_two_ranks_share_count_twice() -> None:
    memory = read_memory(HOSTS / "server-2tib")
    assert isinstance(memory.pinned_pages, int)
    assert isinstance(memory.shmem, int)
    assert memory.pinned_pages * 4096 == 2 * memory.shmem


def test_file_cache_leaves_out_shared_memory(server: Path) -> None:
    path = server / "sys/devices/system/node/node0/meminfo"
    text = path.read_text()
    before = read_memory(server)
    path.write_text(text.replace("550117120", "550117121"))
    assert "550117121" in path.read_text()
    assert read_memory(server).nodes == before.nodes


def test_nodes_that_do_not_add_up_to_the_machine_are_hidden() -> None:
    memory = read_memory(HOSTS / "h200-vm")
    assert memory.total == 131981020 * KIB
    assert isinstance(memory.nodes, Missing)
    assert memory.nodes.absence is Absence.UNSUPPORTED
    assert "its nodes have 4.21 GiB together, and MemTotal says 125.87 GiB" in memory.nodes.why


@pytest.mark.parametrize(
    ("total", "known"),
    [
        pytest.param(2063476562, True, id="exact"),
        pytest.param(
            2063476562 * 100 // 99 - 1, True, id="one percent more in the machine, as it may be when it grows"
        ),
        pytest.param(2063476562 * 100 // 98, False, id="two percent more in the machine"),
        pytest.param(2063476562 * 98 // 100, False, id="two percent less in the machine"),
    ],
)
def test_nodes_may_differ_by_one_percent(server: Path, total: int, known: bool) -> None:
    path = server / "proc/meminfo"
    path.write_text(path.read_text().replace("2063476562", str(total)))
    assert isinstance(read_memory(server).nodes, tuple) is known


def test_a_release_seen_before_its_acquisition_is_no_pin() -> None:
    assert read_memory(HOSTS / "h200-vm").pinned_pages == 0


def test_far_more_released_than_acquired_is_unknown(server: Path) -> None:
    path = server / "proc/vmstat"
    path.write_text(path.read_text().replace("nr_foll_pin_released 70000", "nr_foll_pin_released 999999999999"))
    assert unknown(read_memory(server).pinned_pages)


def test_a_kernel_without_pin_counters_does_not_support_them(server: Path) -> None:
    for path in [server / "proc/vmstat", *(server / "sys/devices/system/node").glob("node*/vmstat")]:
        path.write_text("".join(line + "\n" for line in path.read_text().splitlines() if "foll_pin" not in line))
    memory = read_memory(server)
    assert unsupported(memory.pinned_pages)
    assert isinstance(memory.nodes, tuple)
    assert all(unsupported(node.pinned_pages) for node in memory.nodes)
    assert memory.major_faults == 48213


def test_a_vmstat_that_is_none_supports_nothing_and_denies_nothing(server: Path) -> None:
    (server / "proc/vmstat").write_text("some_other_file 1\n")
    memory = read_memory(server)
    assert unknown(memory.pinned_pages)
    assert unknown(memory.swap_in)


def test_a_kernel_without_psi_does_not_support_pressure() -> None:
    assert unsupported(read_memory(HOSTS / "h200-vm").pressure)


def test_a_kernel_without_numa_has_no_nodes(server: Path) -> None:
    shutil.rmtree(server / "sys/devices/system/node")
    assert unsupported(read_memory(server).nodes)


def test_nothing_mounted_is_unknown_everywhere(tmp_path: Path) -> None:
    memory = read_memory(tmp_path)
    values = [getattr(memory, name) for name in Memory.__dataclass_fields__ if name != "page_bytes"]
    assert all(unknown(value) for value in values)


@pytest.mark.parametrize("how", WAYS)
def test_an_unreadable_meminfo_makes_its_values_unknown_and_no_others(server: Path, how: str) -> None:
    spoil(server / "proc/meminfo", how)
    memory = read_memory(server)
    for value in (memory.total, memory.available, memory.shmem, memory.swap_total, memory.swap_free, memory.nodes):
        assert isinstance(value, Missing)
        assert value.absence is Absence.UNKNOWN
        assert "proc/meminfo" in value.why
    assert memory.pinned_pages == 2 * 650117120 // 4
    assert memory.pressure == Pressure(some=1.75, full=0.25)


@pytest.mark.parametrize("how", WAYS)
def test_an_unreadable_vmstat_makes_its_values_unknown(server: Path, how: str) -> None:
    spoil(server / "proc/vmstat", how)
    memory = read_memory(server)
    assert all(unknown(v) for v in (memory.pinned_pages, memory.swap_in, memory.swap_out, memory.major_faults))
    assert memory.total == 2063476562 * KIB


@pytest.mark.parametrize("how", WAYS)
def test_an_unreadable_pressure_file_is_unknown(server: Path, how: str) -> None:
    spoil(server / "proc/pressure/memory", how)
    assert unknown(read_memory(server).pressure)


@pytest.mark.parametrize("how", WAYS)
def test_an_unreadable_node_makes_the_nodes_unknown(server: Path, how: str) -> None:
    spoil(server / "sys/devices/system/node/node1/meminfo", how)
    assert unknown(read_memory(server).nodes)


@pytest.mark.parametrize("how", WAYS)
def test_unreadable_counters_of_a_node_leave_its_sizes(server: Path, how: str) -> None:
    spoil(server / "sys/devices/system/node/node1/vmstat", how)
    nodes = read_memory(server).nodes
    assert isinstance(nodes, tuple)
    assert unknown(nodes[1].pinned_pages)
    assert nodes[1].free == 870318080 * KIB


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param("MemAvailable:     1237319680 kB", "MemAvailable:     1237319680 MB", id="another unit"),
        pytest.param("MemAvailable:     1237319680 kB", "MemAvailable:     -1 kB", id="negative"),
        pytest.param("MemAvailable:     1237319680 kB", "MemAvailable:     1e9 kB", id="not whole"),
        pytest.param("MemAvailable:     1237319680 kB\n", "", id="not there"),
        pytest.param("MemFree:", "MemAvailable:  5 kB\nMemFree:", id="there twice"),
        pytest.param("1237319680", "9" * 5000, id="endless digits"),
        pytest.param("1237319680", "١٢٣", id="digits of another script"),
    ],
)
def test_a_strange_row_is_unknown_and_its_neighbours_are_not(server: Path, old: str, new: str) -> None:
    path = server / "proc/meminfo"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    memory = read_memory(server)
    assert unknown(memory.available)
    assert memory.total == 2063476562 * KIB


def test_a_machine_without_memory_is_a_strange_form(server: Path) -> None:
    path = server / "proc/meminfo"
    path.write_text(path.read_text().replace("2063476562", "0"))
    assert unknown(read_memory(server).total)


def test_pressure_above_all_of_the_time_is_unknown(server: Path) -> None:
    path = server / "proc/pressure/memory"
    path.write_text(path.read_text().replace("avg60=1.75", "avg60=101.75"))
    assert unknown(read_memory(server).pressure)


def test_a_loop_of_links_is_unknown(server: Path) -> None:
    path = server / "proc/pressure/memory"
    path.unlink()
    path.symlink_to(path)
    assert unknown(read_memory(server).pressure)


def test_this_machine_is_read() -> None:
    memory = read_memory(Path("/"))
    assert isinstance(memory.total, int)
    assert isinstance(memory.available, int)
    assert 0 < memory.available <= memory.total
    assert memory.total > 2**28
    for value in (memory.pinned_pages, memory.swap_in, memory.pressure, memory.nodes):
        assert not isinstance(value, Missing) or "/" in value.why
    if isinstance(memory.nodes, tuple):
        totals = [node.total for node in memory.nodes if isinstance(node.total, int)]
        assert sum(totals) == pytest.approx(memory.total, rel=0.01)


FILES = st.sampled_from(
    [
        "proc/meminfo",
        "proc/vmstat",
        "proc/pressure/memory",
        "sys/devices/system/node/node0/meminfo",
        "sys/devices/system/node/node0/vmstat",
    ]
)


@given(file=FILES, content=st.binary(max_size=300) | st.text(max_size=100).map(str.encode))
def test_no_content_makes_it_raise(fuzzed: Path, file: str, content: bytes) -> None:
    path = fuzzed / file
    original = path.read_bytes()
    path.write_bytes(content)
    try:
        memory = read_memory(fuzzed)
    finally:
        path.write_bytes(original)
    assert isinstance(memory, Memory)


@given(file=FILES, change=CHANGES)
def test_no_change_of_a_real_text_makes_a_number_of_something_else(fuzzed: Path, file: str, change: Change) -> None:
    path = fuzzed / file
    original = path.read_bytes()
    start, length, put_in = change
    path.write_bytes(original[:start] + put_in + original[start + length :])
    try:
        memory = read_memory(fuzzed)
    finally:
        path.write_bytes(original)
    for name in ("total", "available", "shmem", "swap_total", "pinned_pages", "major_faults"):
        value = getattr(memory, name)
        assert isinstance(value, Missing) or value >= 0
    if isinstance(memory.nodes, tuple):
        assert [node.index for node in memory.nodes] == [0, 1]
