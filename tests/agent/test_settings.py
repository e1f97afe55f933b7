"""Settings and versions of the host, from trees of /proc and /sys and from this machine."""

import os
import platform
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hisparse_agent.readers.settings import SYSCTLS, read_host
from hisparse_agent.readings import Absence, Cpufreq, Host, Missing

HOSTS = Path(__file__).parents[1] / "data" / "host"
CPU = "sys/devices/system/cpu"


@pytest.fixture
def server(tmp_path: Path) -> Path:
    return Path(shutil.copytree(HOSTS / "server-2tib", tmp_path / "host"))


@pytest.fixture(scope="session")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(HOSTS / "server-2tib", tmp_path_factory.mktemp("settings") / "host"))


def unknown(value: object) -> bool:
    return isinstance(value, Missing) and value.absence is Absence.UNKNOWN


def unsupported(value: object) -> bool:
    return isinstance(value, Missing) and value.absence is Absence.UNSUPPORTED


def test_a_server_is_read() -> None:
    host = read_host(HOSTS / "server-2tib")
    assert host.kernel == "6.8.0-87-generic"
    assert host.boot_id == "3f0c9a51-7e44-4b6d-9d1e-0a8b7c6d5e4f"
    assert host.uptime == 864321
    assert host.open_module is True
    assert isinstance(host.modules, frozenset)
    assert {"nvidia", "nvidia_peermem", "ib_core"} < host.modules
    assert host.sysctls == {
        "vm.swappiness": "60",
        "kernel.numa_balancing": "1",
        "vm.zone_reclaim_mode": "0",
        "vm.overcommit_memory": "0",
    }
    assert host.huge_pages == "madvise"
    assert host.shmem_huge_pages == "never"
    assert host.cpufreq == Cpufreq(
        driver="intel_pstate",
        governors=("performance", "powersave"),
        offered=("performance", "powersave"),
        preferences=("balance_performance", "performance"),
        offered_preferences=("default", "performance", "balance_performance", "balance_power", "power"),
    )


def test_a_module_that_is_still_loading_is_not_loaded() -> None:
    modules = read_host(HOSTS / "server-2tib").modules
    assert isinstance(modules, frozenset)
    assert "nvme_rdma" not in modules


def test_a_virtual_machine_says_what_it_does_not_have() -> None:
    host = read_host(HOSTS / "h200-vm")
    assert host.open_module is False
    assert host.modules == frozenset()
    assert host.sysctls == {"vm.swappiness": "60", "vm.overcommit_memory": "1"}
    assert host.huge_pages == "always"
    assert unsupported(host.shmem_huge_pages)
    assert unsupported(host.cpufreq)


def test_no_driver_and_no_modules_are_unsupported(server: Path) -> None:
    (server / "proc/driver/nvidia/version").unlink()
    (server / "proc/modules").unlink()
    host = read_host(server)
    assert unsupported(host.open_module)
    assert unsupported(host.modules)


def test_nothing_mounted_is_unknown_everywhere(tmp_path: Path) -> None:
    host = read_host(tmp_path)
    assert all(unknown(getattr(host, name)) for name in Host.__dataclass_fields__ if name != "sysctls")
    assert isinstance(host.sysctls, Missing)


@pytest.mark.parametrize("how", ["a folder", "a link to nowhere", "empty", "no line end", "binary", "strange"])
@pytest.mark.parametrize(
    ("file", "field"),
    [
        ("proc/sys/kernel/osrelease", "kernel"),
        ("proc/sys/kernel/random/boot_id", "boot_id"),
        ("proc/uptime", "uptime"),
        ("proc/driver/nvidia/version", "open_module"),
        ("proc/sys/vm/swappiness", "sysctls"),
        ("sys/kernel/mm/transparent_hugepage/enabled", "huge_pages"),
        ("sys/kernel/mm/transparent_hugepage/shmem_enabled", "shmem_huge_pages"),
        (f"{CPU}/online", "cpufreq"),
        (f"{CPU}/cpu0/cpufreq/scaling_driver", "cpufreq"),
        (f"{CPU}/cpu1/cpufreq/scaling_governor", "cpufreq"),
    ],
)
def test_an_unreadable_file_makes_its_own_value_unknown(server: Path, file: str, field: str, how: str) -> None:
    path = server / file
    path.unlink()
    if how == "a folder":
        path.mkdir()
    elif how == "a link to nowhere":
        path.symlink_to("nowhere")
    else:
        path.write_bytes(
            {"empty": b"", "no line end": b"1", "binary": b"\x00\xff\n", "strange": b"a strange\nform here\n"}[how]
        )
    host, whole = read_host(server), read_host(HOSTS / "server-2tib")
    value = getattr(host, field)
    assert isinstance(value, Missing)
    assert value.absence is Absence.UNKNOWN
    assert file in value.why
    others = set(Host.__dataclass_fields__) - {field}
    assert all(getattr(host, name) == getattr(whole, name) for name in others)


def test_a_pipe_is_not_a_kernel_without_modules(server: Path) -> None:
    (server / "proc/modules").unlink()
    os.mkfifo(server / "proc/modules")
    assert unknown(read_host(server).modules)


def test_a_strange_line_among_the_modules_makes_all_unknown(server: Path) -> None:
    path = server / "proc/modules"
    path.write_text(path.read_text() + "nvidia_peermem\n")
    assert unknown(read_host(server).modules)


def test_a_driver_without_preferences_does_not_support_them(server: Path) -> None:
    for path in (server / CPU).glob("cpu*/cpufreq/energy_performance_*"):
        path.unlink()
    cpufreq = read_host(server).cpufreq
    assert isinstance(cpufreq, Cpufreq)
    assert unsupported(cpufreq.preferences)
    assert unsupported(cpufreq.offered_preferences)
    assert cpufreq.governors == ("performance", "powersave")


def test_a_cpu_that_is_not_online_is_not_asked(server: Path) -> None:
    (server / CPU / "online").write_text("0,2\n")
    (server / CPU / "cpu1/cpufreq/scaling_governor").unlink()
    (server / CPU / "cpu1/cpufreq/scaling_governor").mkdir()
    cpufreq = read_host(server).cpufreq
    assert isinstance(cpufreq, Cpufreq)
    assert cpufreq.governors == ("powersave",)


@pytest.mark.parametrize("text", ["2-0", "0-99999999", "0-8192", "a", "0,", ",", "0-", "-1"])
def test_a_strange_list_of_cpus_is_unknown(server: Path, text: str) -> None:
    (server / CPU / "online").write_text(f"{text}\n")
    assert unknown(read_host(server).cpufreq)


@pytest.mark.parametrize("text", ["always madvise never", "[always] [never]", "[]", "always [madvise never"])
def test_no_choice_or_two_are_unknown(server: Path, text: str) -> None:
    (server / "sys/kernel/mm/transparent_hugepage/enabled").write_text(f"{text}\n")
    assert unknown(read_host(server).huge_pages)


def test_this_machine_is_read() -> None:
    host = read_host(Path("/"))
    assert host.kernel == platform.release()
    assert isinstance(host.boot_id, str)
    assert isinstance(host.uptime, int)
    assert host.uptime > 0
    assert not isinstance(host.sysctls, Missing)
    assert set(host.sysctls) <= set(SYSCTLS)
    assert host.sysctls["vm.swappiness"] == Path("/proc/sys/vm/swappiness").read_text().strip()
    for name in ("open_module", "modules", "huge_pages", "shmem_huge_pages", "cpufreq"):
        value = getattr(host, name)
        assert not isinstance(value, Missing) or "/" in value.why


FILES = st.sampled_from(
    [
        "proc/sys/kernel/osrelease",
        "proc/sys/kernel/random/boot_id",
        "proc/uptime",
        "proc/modules",
        "proc/driver/nvidia/version",
        "proc/sys/vm/swappiness",
        "sys/kernel/mm/transparent_hugepage/enabled",
        f"{CPU}/online",
        f"{CPU}/cpu0/cpufreq/scaling_governor",
        f"{CPU}/cpu0/cpufreq/scaling_available_governors",
    ]
)


@given(
    file=FILES,
    content=st.binary(max_size=200)
    | st.text(max_size=100).map(str.encode)
    | st.text("0123456789-,. []alwysneL\n", max_size=40).map(str.encode),
)
def test_no_content_makes_it_raise(fuzzed: Path, file: str, content: bytes) -> None:
    path = fuzzed / file
    original = path.read_bytes()
    path.write_bytes(content)
    try:
        host = read_host(fuzzed)
    finally:
        path.write_bytes(original)
    assert isinstance(host, Host)
