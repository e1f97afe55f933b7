"""Memory of an engine pod, from both versions of cgroups under both drivers."""

import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hisparse_agent.readers.cgroups import read_pod
from hisparse_agent.readings import Absence, EnginePod, Missing, Pressure

CGROUPS = Path(__file__).parents[1] / "data" / "host" / "cgroups"
UID = "7c9e6679-7425-40de-944b-e07fc1f90ae7"
POD = EnginePod("ai", "glm-0", UID, inference="glm", pool=2**38, limit=2**39, running=True)
FILLED = ("memory", "shmem", "anon", "oom_kills", "max_events", "pressure")
SYSTEMD = f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UID.replace('-', '_')}.slice"


@pytest.fixture
def systemd(tmp_path: Path) -> Path:
    return Path(shutil.copytree(CGROUPS / "v2-systemd", tmp_path / "cgroup"))


@pytest.fixture(scope="session")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(CGROUPS / "v2-systemd", tmp_path_factory.mktemp("cgroups") / "cgroup"))


def absence(value: object) -> Absence | None:
    return value.absence if isinstance(value, Missing) else None


@pytest.mark.parametrize("layout", ["v2-systemd", "v2-cgroupfs"])
def test_version_2(layout: str) -> None:
    pod = read_pod(CGROUPS / layout, POD)
    assert (pod.memory, pod.shmem, pod.anon) == (454194601984, 413390602240, 37580963840)
    assert (pod.oom_kills, pod.max_events) == (2, 41)
    assert pod.pressure == Pressure(some=10.25, full=5.5)


@pytest.mark.parametrize(
    ("layout", "kills", "most"),
    [
        pytest.param("v1-cgroupfs", 0 + 2 + 0, 0 + 40 + 1, id="cgroupfs, two containers"),
        pytest.param("v1-systemd", 0 + 1, 7 + 0, id="systemd, one container"),
    ],
)
def test_version_1_counts_events_in_each_container(layout: str, kills: int, most: int) -> None:
    pod = read_pod(CGROUPS / layout, POD)
    assert (pod.memory, pod.shmem, pod.anon) == (454194601984, 413390602240, 37580963840)
    assert (pod.oom_kills, pod.max_events) == (kills, most)
    assert absence(pod.pressure) is Absence.UNSUPPORTED


@pytest.mark.parametrize("layout", ["v2-systemd", "v2-cgroupfs", "v1-systemd", "v1-cgroupfs"])
def test_what_the_pod_declares_stays(layout: str) -> None:
    pod = read_pod(CGROUPS / layout, POD)
    others = set(EnginePod.__dataclass_fields__) - set(FILLED)
    assert all(getattr(pod, name) == getattr(POD, name) for name in others)


@pytest.mark.parametrize(
    "folder",
    [
        pytest.param(f"kubepods/pod{UID}", id="cgroupfs, guaranteed"),
        pytest.param(f"kubepods/burstable/pod{UID}", id="cgroupfs, burstable"),
        pytest.param(f"kubepods/besteffort/pod{UID}", id="cgroupfs, best effort"),
        pytest.param(f"kubelet/kubepods/burstable/pod{UID}", id="cgroupfs, in kind"),
        pytest.param("kubepods.slice/kubepods-podU.slice", id="systemd, guaranteed"),
        pytest.param("kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podU.slice", id="systemd, burstable"),
        pytest.param(
            "kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podU.slice", id="systemd, best effort"
        ),
        pytest.param("kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-podU.slice", id="systemd, in kind"),
    ],
)
def test_every_layout_is_found(systemd: Path, folder: str) -> None:
    place = systemd / folder.replace("podU", "pod" + UID.replace("-", "_"))
    shutil.move(systemd / SYSTEMD, systemd / "aside")
    shutil.rmtree(systemd / "kubepods.slice")
    place.parent.mkdir(parents=True)
    shutil.move(systemd / "aside", place)
    assert read_pod(systemd, POD).memory == 454194601984


@pytest.mark.parametrize(
    "uid", ["7c9e6679-7425-40de-944b-e07fc1f90ae8", "", "..", "a/../../etc", "7c9e6679\0", "x" * 9999]
)
def test_a_pod_that_is_not_there_is_unknown(uid: str) -> None:
    pod = read_pod(CGROUPS / "v2-systemd", EnginePod("ai", "glm-0", uid))
    assert all(absence(getattr(pod, name)) is Absence.UNKNOWN for name in FILLED)


def test_no_cgroups_are_unknown(tmp_path: Path) -> None:
    for root in (tmp_path, tmp_path / "nowhere"):
        pod = read_pod(root, POD)
        assert all(absence(getattr(pod, name)) is Absence.UNKNOWN for name in FILLED)


def test_a_kernel_without_psi_does_not_support_pressure(systemd: Path) -> None:
    (systemd / SYSTEMD / "memory.pressure").unlink()
    pod = read_pod(systemd, POD)
    assert absence(pod.pressure) is Absence.UNSUPPORTED
    assert pod.memory == 454194601984


@pytest.mark.parametrize("how", ["a folder", "a link to nowhere", "gone", "empty", "cut", "binary", "strange"])
@pytest.mark.parametrize(
    ("file", "fields"),
    [
        ("memory.current", {"memory"}),
        ("memory.stat", {"shmem", "anon"}),
        ("memory.events", {"oom_kills", "max_events"}),
        ("memory.pressure", {"pressure"}),
    ],
)
def test_an_unreadable_file_makes_its_own_values_missing(systemd: Path, file: str, fields: set[str], how: str) -> None:
    path = systemd / SYSTEMD / file
    content = path.read_bytes()
    path.unlink()
    if how == "a folder":
        path.mkdir()
    elif how == "a link to nowhere":
        path.symlink_to("nowhere")
    elif how != "gone":
        path.write_bytes({"empty": b"", "cut": content[:-2], "binary": b"\x00" + content, "strange": b"max\n"}[how])
    pod, whole = read_pod(systemd, POD), read_pod(CGROUPS / "v2-systemd", POD)
    psi = file == "memory.pressure" and how == "gone"
    for name in FILLED:
        if name in fields:
            assert absence(getattr(pod, name)) is (Absence.UNSUPPORTED if psi else Absence.UNKNOWN)
        else:
            assert getattr(pod, name) == getattr(whole, name)


def test_a_container_of_version_1_that_cannot_be_read_makes_the_sum_unknown(tmp_path: Path) -> None:
    root = Path(shutil.copytree(CGROUPS / "v1-cgroupfs", tmp_path / "cgroup"))
    control = root / f"memory/kubepods/burstable/pod{UID}" / ("a" * 64) / "memory.oom_control"
    control.write_text("under_oom 0\n")
    pod = read_pod(root, POD)
    assert absence(pod.oom_kills) is Absence.UNKNOWN
    assert pod.max_events == 41


def test_this_machine_has_no_such_pod_and_says_so() -> None:
    pod = read_pod(Path("/sys/fs/cgroup"), POD)
    assert all(absence(getattr(pod, name)) is Absence.UNKNOWN for name in FILLED)
    assert isinstance(pod.memory, Missing)
    assert "/sys/fs/cgroup" in pod.memory.why


@given(
    file=st.sampled_from(["memory.current", "memory.stat", "memory.events", "memory.pressure"]),
    content=st.binary(max_size=200) | st.text(max_size=80).map(lambda text: f"{text}\n".encode()),
    uid=st.text(max_size=80),
)
def test_nothing_makes_it_raise(fuzzed: Path, file: str, content: bytes, uid: str) -> None:
    path = fuzzed / SYSTEMD / file
    original = path.read_bytes()
    path.write_bytes(content)
    try:
        assert isinstance(read_pod(fuzzed, POD), EnginePod)
        assert isinstance(read_pod(fuzzed, EnginePod("ai", "glm-0", uid)), EnginePod)
    finally:
        path.write_bytes(original)
