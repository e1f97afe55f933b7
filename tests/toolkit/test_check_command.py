"""`hisparse check` as a person on call, a script and a laptop see it: on recordings, and on a machine with a false NVML."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import captures
import fake_pynvml
import pytest
from node_readings import GIB, START, Edits, changed, healthy

from hisparse.nodes.catalogue import Pace
from hisparse.nodes.checks import CHECKS, DECIDING
from hisparse.nodes.findings import Finding, State
from hisparse_agent.readings import Missing, NodeReading, Xid
from hisparse_agent.replay import text_of
from hisparse_toolkit.answering import SCHEMAS
from hisparse_toolkit.check_command import in_short, promised, tone_of
from hisparse_toolkit.cli import main
from hisparse_toolkit.sheet import Tone

ROOT: Final = Path(__file__).parents[2]
HISPARSE: Final = f"{sys.executable} -m hisparse_toolkit"
LIMIT_S: Final = 60
PLAIN: Final = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR", "FORCE_COLOR")}

NINE: Final[Edits] = {f"nvml.gpus.0.links.{port}.state": 0 for port in range(9, 18)}
LOW: Final[Edits] = {"memory.available": 49 * GIB}
WARM: Final[Edits] = {"nvml.gpus.*.heat.margin": 10}
UNREAD: Final[Edits] = {"nvml": captures.UNKNOWN}
NO_DRIVER: Final[Edits] = {"nvml": captures.UNSUPPORTED}

Record = Callable[..., Path]
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def record(tmp_path: Path) -> Record:
    def write(edits: Edits | None = None, polls: int = 1, **changes: Any) -> Path:
        folder = tmp_path / "recording"
        folder.mkdir()
        for poll in range(polls):
            reading: NodeReading = replace(changed(healthy(poll), edits or {}, poll), **changes)
            (folder / f"reading-{poll:06d}.json").write_bytes(text_of(reading))
        return folder

    return write


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.delenv("COLUMNS", raising=False)

    def call(*words: str) -> tuple[int, str, str]:
        code = main(["check", *words])
        told = capsys.readouterr()
        return code, told.out, told.err

    return call


def bash(line: str, environment: Mapping[str, str] = PLAIN) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, check=False, timeout=LIMIT_S, env=environment
    )


def flowing(text: str) -> str:
    return " ".join(text.split())


# --- codes and the document ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("edits", "code", "verdict", "first"),
    [
        pytest.param({}, 0, "Healthy", "HEALTHY  ", id="well"),
        pytest.param(LOW, 1, "Warnings", "WARNINGS  1 Warn, ", id="a warning"),
        pytest.param({**LOW, **NINE}, 3, "Critical", "CRITICAL  2 Critical, 1 Warn, ", id="critical"),
        pytest.param(UNREAD, 4, "Unknown", "COULD NOT FIND OUT  ", id="NVML does not answer"),
        pytest.param(
            {**UNREAD, **LOW}, 4, "Unknown", "COULD NOT FIND OUT  1 Warn, ", id="a warning hides no blindness"
        ),
        pytest.param({**UNREAD, "memory.available": GIB}, 3, "Critical", "CRITICAL  ", id="critical needs no more"),
        pytest.param({"pods": captures.UNKNOWN}, 0, "Healthy", "HEALTHY  ", id="what does not decide may be unread"),
        pytest.param(NO_DRIVER, 0, "Healthy", "HEALTHY  ", id="no driver is no fault"),
    ],
)
def test_the_code_the_word_and_the_first_line_agree(
    run: Run, record: Record, edits: Edits, code: int, verdict: str, first: str
) -> None:
    # without its driver the well node's GPUs would be missing
    folder = record(edits, expected_gpus=captures.UNSUPPORTED)
    told, out, err = run("--replay", str(folder))
    assert (told, err) == (code, "")
    assert out.startswith(first)
    told, out, err = run("--replay", str(folder), "--json")
    assert (told, err) == (code, "")
    found = json.loads(out)
    assert (found["verdict"], found["exitCode"], found["errors"]) == (verdict, code, [])


@pytest.mark.parametrize("check", DECIDING)
def test_each_check_that_decides_leaves_it_open(check: str) -> None:
    well = Finding("xid", "gpu-0", State.OK, "AsExpected", "none", START)
    blind = replace(well, check=check, state=State.UNKNOWN)
    assert tone_of((well, blind)) is Tone.UNKNOWN
    assert tone_of((well, replace(blind, state=State.UNSUPPORTED))) is Tone.YES
    assert check in {row.id for row in CHECKS}


def test_gpus_that_are_promised_and_cannot_be_seen_are_four(run: Run, record: Record) -> None:
    code, out, _ = run("--replay", str(record(NO_DRIVER, expected_gpus=8)))
    assert code == 4
    assert out.startswith("COULD NOT FIND OUT  ")
    assert "8 GPUs are promised and NVML is not there" in flowing(out)
    assert "set runtimeClassName nvidia" in flowing(out)


def test_the_bus_promises_gpus_only_where_nvml_shows_none() -> None:
    well = healthy().nvml
    assert promised(captures.UNSUPPORTED, 8) == 8
    assert promised(changed(well, {"gpus": ()}), 8) == 8
    assert isinstance(promised(well, 8), Missing), "a container may have been given two of eight"
    none = promised(captures.UNSUPPORTED, 0)
    assert isinstance(none, Missing)
    assert none.why.startswith("this command asks no cluster")
    assert promised(captures.UNSUPPORTED, captures.UNKNOWN) == captures.UNKNOWN


def test_what_nvml_does_not_tell_leaves_no_gap_in_the_facts(run: Run, record: Record) -> None:
    edits = {"nvml.gpus.*.product": "", "nvml.driver": "", "nvml.cuda": ""}
    _, out, _ = run("--replay", str(record(edits)))
    assert "2 x GPU without a name; driver not told, CUDA not told" in flowing(out)
    assert "NVML does not tell the version of the driver" in flowing(out)


def test_the_document_has_the_keys_of_its_schema_in_their_order(run: Run, record: Record) -> None:
    schema = SCHEMAS["check"]
    wanted = ["schema", "verdict", "exitCode", *schema.keys, "errors"]
    for words in (("--replay", str(record(NINE))), ("--deadline", "0"), ("--bogus",), ("--replay", "/not-there")):
        _, out, _ = run(*words, "--json")
        found = json.loads(out)
        assert list(found) == wanted
        assert found["schema"] == schema.name
        assert out.isascii()


def keys_of(value: Any, path: str = "") -> set[str]:
    """Paths of leaves, and of objects and lists that may be null."""
    if isinstance(value, dict):
        inner = {key for name, one in value.items() for key in keys_of(one, f"{path}.{name}".lstrip("."))}
        return inner | ({path} if path else set())
    if isinstance(value, list):
        return {key for one in value for key in keys_of(one, f"{path}[]")} | {path}
    return {path}


def test_the_reference_names_every_key_and_no_other(run: Run, record: Record) -> None:
    _, out, _ = run("--replay", str(record({**NINE, "nvml.gpus.0.numa_node": 0})), "--json")
    _, bad, _ = run("--deadline", "0", "--json")
    found = {key for key in keys_of(json.loads(out)) | keys_of(json.loads(bad)) if not key.endswith("[]")} - {"errors"}
    page = (ROOT / "docs/reference/check-json.md").read_text()
    assert set(re.findall(r"(?m)^\| `([^`]+)` \|", page)) == found


def test_findings_are_whole_and_the_worst_come_first(run: Run, record: Record) -> None:
    _, out, _ = run("--replay", str(record({**NINE, **LOW}, polls=3)), "--json")
    findings = json.loads(out)["findings"]
    order = [state.value for state in (State.CRITICAL, State.WARN, State.UNKNOWN, State.OK, State.UNSUPPORTED)]
    places = [order.index(one["state"]) for one in findings]
    assert places == sorted(places)
    assert {one["check"] for one in findings} == {row.id for row in CHECKS}
    assert findings[0] == {
        "check": "nvlink.links",
        "subject": "gpu-0",
        "state": "Critical",
        "reason": "NvlinkLinksDown",
        "message": "9 of 18 NVLink ports are active (NVIDIA H200 has 18), ports 9-17 are not; "
        "run nvidia-smi nvlink -s, read the fabric manager's log, drain the node and reset its GPUs",
        "value": "9",
        "limit": "18",
        "unit": "count",
    }


# --- recordings ------------------------------------------------------------------------------------------------------


def states(out: str) -> dict[tuple[str, str], str]:
    return {(one["check"], one["subject"]): one["state"] for one in json.loads(out)["findings"]}


def test_a_recording_has_the_rates_that_one_reading_has_not(run: Run, record: Record) -> None:
    folder = record({"nvml.gpus.0.links.3.crc_errors": lambda poll: 100 * poll}, polls=45)
    code, out, _ = run("--replay", str(folder), "--json")
    assert (code, states(out)[("nvlink.errors", "gpu-0")]) == (1, "Warn")
    assert "Unknown" not in states(out).values()
    code, out, _ = run("--replay", str(folder / "reading-000044.json"), "--json")
    assert (code, states(out)[("nvlink.errors", "gpu-0")]) == (0, "Unknown")


def test_lines_of_the_kernel_log_count_whenever_they_were_read(run: Run, record: Record) -> None:
    line = Xid(94, 100_000.0, "0000:1b:00.0", "Xid 94")
    folder = record(polls=3)
    first = replace(healthy(), xids=(line,))
    (folder / "reading-000000.json").write_bytes(text_of(first))
    code, out, _ = run("--replay", str(folder), "--json")
    assert (code, states(out)[("xid", "gpu-0")]) == (1, "Warn")


def test_the_last_reading_with_gpus_is_judged(run: Run, record: Record) -> None:
    """Between two readings of GPUs the agent reads the host alone; those say nothing new of a GPU."""
    folder = record(NINE, polls=2)
    between = replace(healthy(2), fresh=frozenset({Pace.HOST}))
    (folder / "reading-000002.json").write_bytes(text_of(between))
    assert run("--replay", str(folder))[0] == 3


@pytest.mark.parametrize(
    ("files", "message"),
    [
        pytest.param(None, "is not there", id="nothing"),
        pytest.param({}, "has no *.json and no *.jsonl", id="an empty folder"),
        pytest.param({"notes.txt": "x"}, "has no *.json and no *.jsonl", id="other files"),
        pytest.param({"a.jsonl": "\n\n"}, "holds no reading", id="blank lines"),
        pytest.param({"a.json": "{"}, "a.json, reading 1: ", id="half a document"),
        pytest.param({"a.json": "[]"}, "a.json, reading 1: ", id="another document"),
        pytest.param({"a.json": '{"at": "2026-11-29T12:00:00Z"}'}, "monotonic is missing", id="a part"),
        pytest.param({"a.json": "[" * 100_000}, "a.json, reading 1: ", id="deep"),
    ],
)
def test_a_recording_of_no_use_is_named(
    run: Run, tmp_path: Path, files: Mapping[str, str] | None, message: str
) -> None:
    folder = tmp_path / "recording"
    if files is not None:
        folder.mkdir()
        for name, text in files.items():
            (folder / name).write_text(text)
    code, out, err = run("--replay", str(folder))
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith("--replay: ")
    assert message in line
    code, out, _ = run("--replay", str(folder), "--json")
    found = json.loads(out)
    assert (found["verdict"], found["exitCode"], found["findings"]) == ("BadInput", 2, None)
    assert found["errors"][0]["field"] == "--replay"


@pytest.mark.parametrize(
    ("words", "field"),
    [
        (("--deadline", "0"), "--deadline"),
        (("--deadline", "121"), "--deadline"),
        (("--deadline", "soon"), "--deadline"),
        (("--bogus",), "--bogus"),
        (("--replay",), "--replay"),
        (("gpu-0",), "command line"),
    ],
)
def test_a_bad_option_is_named_in_words_and_in_json(run: Run, words: tuple[str, ...], field: str) -> None:
    code, out, err = run(*words)
    assert (code, out) == (2, "")
    assert err
    code, out, _ = run("--json", *words)
    assert code == 2
    assert [one["field"] for one in json.loads(out)["errors"]] == [field]


def test_a_connector_that_is_declared_is_judged(run: Run, record: Record) -> None:
    folder = record({"rdma.declared": False, "host.open_module": False})
    code, out, _ = run("--replay", str(folder), "--json")
    assert (code, states(out)[("rdma.path", "host")]) == (0, "Unsupported")
    assert "--rdma judges" in flowing(run("--replay", str(folder))[1])
    code, out, _ = run("--replay", str(folder), "--json", "--rdma")
    assert (code, states(out)[("rdma.path", "host")]) == (1, "Warn")
    told = flowing(run("--replay", str(folder), "--rdma")[1])
    assert "run modprobe nvidia-peermem" in told, "the command is reported, and the module is not loaded"
    assert "--rdma judges" not in told


# --- the screen ------------------------------------------------------------------------------------------------------


def test_faults_are_told_and_the_rest_is_named(run: Run, record: Record) -> None:
    _, out, _ = run("--replay", str(record({**NINE, **LOW}, polls=45)))
    lines = out.splitlines()
    assert lines[0].startswith("CRITICAL  2 Critical, 1 Warn, ")
    assert lines[1] == "GPUs         2 x NVIDIA H200; driver 580.159.04, CUDA 13.0"
    assert lines.index("Critical") < lines.index("Warn")
    told = flowing(out)
    assert "nvlink.links gpu-0 9 of 18 NVLink ports are active" in told
    assert "drain the node and reset its GPUs" in told
    # the other GPU's links are well, and nobody reads that as the verdict on links
    assert "elsewhere nvlink.links, nvlink.capacity" in told
    assert "the GPU answers" not in out


def test_all_says_why_each_check_is_well_or_does_not_apply(run: Run, record: Record) -> None:
    _, out, _ = run("--replay", str(record({"nvml.gpus.*.fabric": captures.UNSUPPORTED})), "--all")
    told = flowing(out)
    assert "gpu.lost gpu-0, gpu-1 the GPU answers" in told
    assert "fabric: not there: the capture says that there is none" in told
    assert "Later nvlink.errors, pcie.errors, " in told
    for row in CHECKS:
        assert row.id in told
    assert "--all" not in out


def test_what_is_said_in_the_same_words_is_said_once(run: Run, record: Record) -> None:
    _, out, _ = run("--replay", str(record(WARM)))
    assert out.count("10 C are left") == 1
    assert "thermal.margin gpu-0, gpu-1 10 C are left" in flowing(out)


@pytest.mark.parametrize(
    ("subjects", "text"),
    [
        pytest.param(["host"], "host", id="one"),
        pytest.param(["gpu-0", "gpu-1"], "gpu-0, gpu-1", id="two are told"),
        pytest.param([f"gpu-{index}" for index in range(12)], "gpu-0 to gpu-11", id="a row of them"),
        pytest.param(["gpu-0", "gpu-1", "gpu-2", "gpu-5"], "gpu-0 to gpu-2, gpu-5", id="a row and one"),
        pytest.param(["gpu-0", "gpu-2", "gpu-4"], "gpu-0, gpu-2, gpu-4", id="every other one"),
        pytest.param(["pod-a/b-1", "pod-a/b-2", "pod-c/b-3"], "pod-a/b-1, pod-a/b-2,\npod-c/b-3", id="pods"),
    ],
)
def test_subjects_in_a_few_words(subjects: list[str], text: str) -> None:
    assert in_short(subjects) == text


@pytest.mark.parametrize("width", [40, 60, 80, 132, 200])
@pytest.mark.parametrize("every", [False, True])
def test_no_line_is_wider_than_the_terminal_and_nothing_is_cut(
    run: Run, record: Record, monkeypatch: pytest.MonkeyPatch, width: int, *, every: bool
) -> None:
    folder = record({**NINE, **LOW, "nvml.gpus.1.lost": True})
    monkeypatch.setenv("COLUMNS", str(width))
    code, out, _ = main_at(run, folder, every=every)
    assert code == 3
    assert [line for line in out.splitlines() if len(line) > width] == []
    assert "…" not in out
    monkeypatch.setenv("COLUMNS", "1000")
    wide = main_at(run, folder, every=every)[1]
    # a narrow table becomes blocks, without heads, and breaks words that are longer than a line
    assert {word for word in wide.split() if len(word) < 18} - set(out.split()) <= {"check"}
    for state in ("Critical", "Warn", "Unknown"):
        assert f"\n{state}\n" in out


def main_at(run: Run, folder: Path, *, every: bool) -> tuple[int, str, str]:
    return run("--replay", str(folder), *(["--all"] if every else []))


# --- pipes, colours, signals -----------------------------------------------------------------------------------------


def test_a_reader_that_has_seen_enough_changes_no_code(record: Record) -> None:
    done = bash(f"{{ {HISPARSE} check --replay {record(NINE)} --all; echo $? >&2; }} | head -1")
    assert done.stdout.startswith("CRITICAL")
    assert done.stderr == "3\n"


def test_a_full_disk_is_four(record: Record) -> None:
    done = bash(f"{HISPARSE} check --replay {record()} >/dev/full")
    assert done.returncode == 4
    assert done.stderr.startswith("stdout: ")


def on_terminal(line: str, **environment: str) -> str:
    ours, terminal = pty.openpty()
    subprocess.run(
        ["bash", "-c", line],
        stdout=terminal,
        check=False,
        timeout=LIMIT_S,
        env={**PLAIN, "TERM": "xterm", **environment},
    )
    os.close(terminal)
    told = b""
    while True:
        try:
            chunk = os.read(ours, 65_536)
        except OSError:
            break
        if not chunk:
            break
        told += chunk
    os.close(ours)
    return told.decode()


def test_colours_are_for_terminals_that_want_them(record: Record) -> None:
    command = f"{HISPARSE} check --replay {record(NINE)}"
    assert "\x1b[" in on_terminal(command, COLUMNS="100")
    assert "\x1b[3" not in on_terminal(command, COLUMNS="100", NO_COLOR="1"), "no colour; bold is none"
    piped = bash(command)
    assert "\x1b" not in piped.stdout
    assert all(line == line.rstrip() for line in piped.stdout.splitlines())


def test_the_screen_has_only_characters_of_ascii(record: Record) -> None:
    done = bash(f"{HISPARSE} check --replay {record(NINE)} --all", {**PLAIN, "PYTHONIOENCODING": "ascii"})
    assert done.returncode == 3
    assert done.stdout.isascii()
    assert "\\u" not in done.stdout


# --- a machine -------------------------------------------------------------------------------------------------------


def machine(tmp_path: Path, scenario: Mapping[str, Any]) -> dict[str, str]:
    """The variables of a machine whose NVML answers so; its host is the one that the test runs on."""
    return {name: value for name, value in fake_pynvml.environment(tmp_path, scenario).items() if name != "COLUMNS"}


def gpu_findings(out: str) -> list[dict[str, Any]]:
    return [one for one in json.loads(out)["findings"] if one["check"].startswith(("gpu", "nvlink", "fabric", "th"))]


def test_a_laptop_without_a_gpu_has_no_fault_of_one(tmp_path: Path) -> None:
    done = bash(f"{HISPARSE} check --json", machine(tmp_path, {"library": False, "gpus": []}))
    assert done.stderr == ""
    assert {one["state"] for one in gpu_findings(done.stdout)} == {"Unsupported"}
    found = json.loads(done.stdout)
    assert done.returncode == found["exitCode"] != 4
    assert found["inventory"]["gpus"] is None
    assert "none judged: no NVIDIA driver" in flowing(
        bash(f"{HISPARSE} check", machine(tmp_path, {"library": False, "gpus": []})).stdout
    )


def test_two_cards_are_read_through_nvml_and_nobody_is_asked_about_a_cluster(tmp_path: Path) -> None:
    done = bash(f"{HISPARSE} check --json", machine(tmp_path, captures.scenario_of("h200_x2_idle")))
    assert done.stderr == ""
    told = states(done.stdout)
    for subject in ("gpu-0", "gpu-1"):
        for check in ("gpu.lost", "nvlink.links", "nvlink.capacity", "nvlink.p2p", "fabric.state", "thermal.margin"):
            assert told[(check, subject)] == "Ok"
        assert told[("nvlink.errors", subject)] == "Unknown"
    found = {one["check"]: one for one in json.loads(done.stdout)["findings"]}
    for check in ("gpu.count", "host.mem.fit", "host.memcg", "exporter.fresh"):
        assert found[check]["state"] == "Unsupported"
        assert "this command asks no cluster" in found[check]["message"]


def test_nvml_that_does_not_answer_is_four_and_not_well(tmp_path: Path) -> None:
    scenario = {**captures.scenario_of("h200_x2_idle"), "at": {"nvmlDeviceGetName": "hang"}}
    done = bash(f"{HISPARSE} check --json --deadline 1", machine(tmp_path, scenario))
    found = json.loads(done.stdout)
    assert {one["state"] for one in gpu_findings(done.stdout) if one["check"] != "gpu.count"} == {"Unknown"}
    assert done.returncode in (3, 4), "3 only where the host of this test is critical"
    assert found["exitCode"] == done.returncode
    assert "NVML did not answer within 1 s" in done.stdout


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_it_can_be_stopped_while_nvml_hangs_and_leaves_no_process(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    scenario = {**captures.scenario_of("h200_x2_idle"), "at": {"nvmlDeviceGetName": "hang"}}
    environment = machine(tmp_path, scenario)
    (tmp_path / "pynvml.py").write_text(TELLING)
    # a shell that runs the suite in the background has its children ignore SIGINT
    words = ["env", "--default-signal", sys.executable, "-m", "hisparse_toolkit", "check", "--deadline", "100"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as check:
        child = child_in_nvml(tmp_path)
        check.send_signal(number)
        # the child has its stderr, so that this ends after both
        out, err = check.communicate(timeout=LIMIT_S)
    assert (check.returncode, out, err) == (code, "", "")
    assert not Path(f"/proc/{child}").exists()


TELLING: Final = """
import os, pathlib, sys
import fake_pynvml

wait = fake_pynvml.Library._wait


def told(*words):
    pathlib.Path(__file__).with_name("hangs").write_text(f"{os.getpid()}\\n")
    wait(*words)


fake_pynvml.Library._wait = told
sys.modules[__name__] = fake_pynvml.load()
"""
"""A false NVML that tells who hangs in it."""


def child_in_nvml(folder: Path) -> int:
    """The NVML child, once it hangs."""
    told = folder / "hangs"
    while not (told.exists() and told.read_text().endswith("\n")):
        time.sleep(0.02)
    return int(told.read_text())
