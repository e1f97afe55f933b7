"""The actuator as a process, on a folder that looks like a machine."""

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import fake_power_nvml as nvml
import pytest
from remedy_shapes import BOOT, UUIDS

from hisparse.nodes.catalogue import Verb
from hisparse_agent.actuator import __main__ as program
from hisparse_agent.exchange import Found, read_records, write_records, write_wish
from hisparse_agent.records import Change, Phase, Record, Records, Wanted, Wish

pytestmark = pytest.mark.timeout(120)

LIMIT_S = 30
SWAPPINESS = "proc/sys/vm/swappiness"
BOOT_ID = "proc/sys/kernel/random/boot_id"


class Machine:
    """Its files, its cards, and the actuator on it."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "root"
        self.state = folder / "state"
        self.cards = folder / "nvml"
        self.log = folder / "log"
        self.put(SWAPPINESS, "60")
        self.put("proc/sys/vm/overcommit_memory", "0")
        self.put(BOOT_ID, BOOT)
        for cpu in range(3):
            place = f"sys/devices/system/cpu/cpu{cpu}/cpufreq"
            self.put(f"{place}/scaling_governor", "schedutil")
            self.put(f"{place}/scaling_available_governors", "performance schedutil")
        self.environment = nvml.install(self.cards, {UUIDS[0]: nvml.card(), UUIDS[1]: nvml.card(650_000)})
        self.processes: list[subprocess.Popen[bytes]] = []

    def put(self, path: str, text: str) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        target.write_text(f"{text}\n")

    def get(self, path: str) -> str:
        return (self.root / path).read_text().strip()

    def governors(self) -> list[str]:
        return [self.get(f"sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor") for cpu in range(3)]

    def limits(self) -> list[int]:
        state = nvml.read(self.cards)
        return [state[uuid]["limit"] for uuid in UUIDS[:2]]

    def cards_say(self, **changed: Any) -> None:
        state = nvml.read(self.cards)
        nvml.write(self.cards, {name: value for name, value in {**state, **changed}.items() if value is not None})

    def tree(self) -> dict[str, str]:
        return {str(path): path.read_text() for path in sorted(self.root.rglob("*")) if path.is_file()}

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "hisparse_agent.actuator", "--root", str(self.root)),
                    *("--state-dir", str(self.state), "--interval", "50ms", "--log-format", "json", *words),
                ],
                env=self.environment,
                stderr=log,
            )
        self.processes.append(process)
        return process

    def end(self, process: subprocess.Popen[bytes], number: int = signal.SIGTERM) -> int:
        process.send_signal(number)
        return process.wait(LIMIT_S)

    def wish(self, *actions: Wanted, age: int = 0, boot_id: str = BOOT) -> None:
        self.state.mkdir(exist_ok=True)
        write_wish(self.state, Wish(datetime.now(UTC) - timedelta(seconds=age), boot_id, actions))

    def records(self) -> tuple[Record, ...]:
        found = read_records(self.state, own=False)
        assert not found.fault
        return found.content.records if found.content else ()

    def phases(self) -> dict[str, Phase]:
        return {record.target: record.phase for record in self.records()}

    def until(self, holds: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not holds():
            assert time.monotonic() < deadline, f"{what}: {self.records()}\n{self.log.read_text()}"
            time.sleep(0.02)

    def until_in_force(self, count: int) -> None:
        self.until(lambda: list(self.phases().values()) == [Phase.IN_FORCE] * count, f"{count} are in force")

    def until_phase(self, target: str, phase: Phase) -> Record:
        self.until(lambda: self.phases().get(target) is phase, f"{target} is {phase}")
        return next(record for record in self.records() if record.target == target)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    found = Machine(tmp_path)
    yield found
    for process in found.processes:
        if process.poll() is None:
            process.kill()
            process.wait()


def action(verb: Verb, *changes: tuple[str, str], name: str = "a", ttl: int = 3600) -> Wanted:
    made = tuple(Change(target, new) for target, new in changes)
    return Wanted(name, verb, made, "why", "host.swap", "p", ttl, datetime.now(UTC))


def swap(name: str = "a", new: str = "10", ttl: int = 3600) -> Wanted:
    return action(Verb.SYSCTL, ("vm.swappiness", new), name=name, ttl=ttl)


CAPS = action(Verb.POWER_CAP, (UUIDS[0], "630000"), (UUIDS[1], "580000"), name="caps")
GOVERNORS = action(Verb.CPUFREQ, ("cpu/scaling_governor", "performance"), name="cpus")


def test_what_is_wanted_is_recorded_done_and_put_back_when_it_is_no_longer_wanted(machine: Machine) -> None:
    machine.put("sys/devices/system/cpu/cpu1/cpufreq/scaling_governor", "performance")
    machine.wish(swap(), CAPS, GOVERNORS)
    process = machine.start()
    machine.until_in_force(5)
    assert machine.get(SWAPPINESS) == "10"
    assert machine.limits() == [630_000, 580_000]
    assert machine.governors() == ["performance"] * 3
    old = {record.target: record.old for record in machine.records()}
    assert old == {
        "vm.swappiness": "60",
        UUIDS[0]: "700000",
        UUIDS[1]: "650000",
        "cpu0/scaling_governor": "schedutil",
        "cpu2/scaling_governor": "schedutil",
    }
    assert {(record.boot_id, record.policy, record.ttl_seconds) for record in machine.records()} == {(BOOT, "p", 3600)}
    # one card has cooled
    machine.wish(replace(CAPS, changes=CAPS.changes[:1]), GOVERNORS)
    machine.until_phase(UUIDS[1], Phase.REVERTED)
    machine.until_phase("vm.swappiness", Phase.REVERTED)
    assert machine.limits() == [630_000, 650_000], "the earlier limit, not the default"
    assert machine.get(SWAPPINESS) == "60"
    machine.wish()
    machine.until(lambda: set(machine.phases().values()) == {Phase.REVERTED}, "all is put back")
    assert machine.limits() == [700_000, 650_000]
    assert machine.governors() == ["schedutil", "performance", "schedutil"]
    assert machine.end(process) == 0


def test_it_puts_everything_back_when_it_is_told_to_stop_and_does_not_begin_again(machine: Machine) -> None:
    machine.wish(swap(), CAPS, GOVERNORS)
    process = machine.start()
    machine.until_in_force(6)
    assert machine.end(process) == 0
    assert {record.message for record in machine.records()} == {"the actuator stops"}
    assert (machine.get(SWAPPINESS), machine.limits(), machine.governors()) == (
        "60",
        [700_000, 650_000],
        ["schedutil"] * 3,
    )
    machine.start()
    machine.wish(swap(), CAPS, GOVERNORS, action(Verb.SYSCTL, ("kernel.panic", "1"), name="later"))
    machine.until_phase("kernel.panic", Phase.REFUSED)
    assert machine.get(SWAPPINESS) == "60", "an action is taken up once"


def test_it_ends_after_its_time_though_it_is_still_wanted(machine: Machine) -> None:
    machine.start()
    machine.until(lambda: '"started"' in machine.log.read_text(), "it runs")
    machine.wish(swap(ttl=1))
    assert machine.until_phase("vm.swappiness", Phase.REVERTED).message == "its time is over"
    assert machine.get(SWAPPINESS) == "60"


@pytest.mark.parametrize(
    "rest",
    [pytest.param({"age": 130}, id="the agent is silent"), pytest.param({"boot_id": "other"}, id="of another boot")],
)
def test_an_old_wish_is_none(machine: Machine, rest: dict[str, Any]) -> None:
    machine.wish(swap())
    machine.start()
    machine.until_phase("vm.swappiness", Phase.IN_FORCE)
    machine.wish(swap(), swap("b", "5"), **rest)
    machine.until_phase("vm.swappiness", Phase.REVERTED)
    assert machine.get(SWAPPINESS) == "60"
    assert [record.action for record in machine.records()] == ["a"]


def test_a_wish_that_is_broken_or_gone_puts_back(machine: Machine) -> None:
    machine.wish(swap())
    process = machine.start()
    machine.until_phase("vm.swappiness", Phase.IN_FORCE)
    (machine.state / "wanted.json").write_text('{"format": 1, "content": {"actions": 7}}')
    record = machine.until_phase("vm.swappiness", Phase.REVERTED)
    assert record.message == "there is no wish of the agent"
    assert (machine.state / "wanted.json.broken").exists()
    assert process.poll() is None


def test_a_value_that_somebody_has_changed_since_is_left_alone(machine: Machine) -> None:
    machine.wish(swap(), CAPS)
    machine.start()
    machine.until_in_force(3)
    machine.put(SWAPPINESS, "33")
    state = nvml.read(machine.cards)
    machine.cards_say(**{UUIDS[0]: {**state[UUIDS[0]], "limit": 500_000}})
    machine.wish()
    assert "set it to 33" in machine.until_phase("vm.swappiness", Phase.FOREIGN).message
    machine.until_phase(UUIDS[0], Phase.FOREIGN)
    machine.until_phase(UUIDS[1], Phase.REVERTED)
    assert (machine.get(SWAPPINESS), machine.limits()) == ("33", [500_000, 650_000])


def test_a_wish_for_another_value_puts_the_first_back_before(machine: Machine) -> None:
    machine.wish(swap())
    machine.start()
    machine.until_phase("vm.swappiness", Phase.IN_FORCE)
    machine.wish(swap("b", "5"))
    machine.until(lambda: machine.get(SWAPPINESS) == "5", "the second is in force")
    machine.until(
        lambda: (
            {record.action: record.phase for record in machine.records()} == {"b": Phase.IN_FORCE, "a": Phase.REVERTED}
        ),
        "recorded",
    )
    assert [record.old for record in machine.records()] == ["60", "60"]
    machine.wish(swap("b", "5"), swap("c", "1"))
    machine.until(lambda: "c" in {record.action for record in machine.records()}, "the third is judged")
    assert "another action holds it" in {record.message for record in machine.records()}
    assert machine.get(SWAPPINESS) == "5"


# --- SIGKILL ---------------------------------------------------------------------------------------------------------


def as_pipe(machine: Machine) -> Path:
    """The setting as a pipe: whoever reads or writes it waits for us, so that we know where it is."""
    pipe = machine.root / SWAPPINESS
    pipe.unlink()
    os.mkfifo(pipe)
    return pipe


def killed_between_record_and_act(machine: Machine) -> None:
    pipe = as_pipe(machine)
    machine.wish(swap())
    process = machine.start()
    pipe.write_text("60\n")
    # it looks once more before it writes, and that look waits for us
    machine.until_phase("vm.swappiness", Phase.RECORDED)
    machine.end(process, signal.SIGKILL)


def killed_between_act_and_reading_back(machine: Machine) -> None:
    pipe = as_pipe(machine)
    machine.wish(swap())
    process = machine.start()
    pipe.write_text("60\n")
    machine.until_phase("vm.swappiness", Phase.RECORDED)
    pipe.write_text("60\n")
    assert pipe.read_text() == "10\n"
    assert machine.phases() == {"vm.swappiness": Phase.RECORDED}
    machine.end(process, signal.SIGKILL)


def test_killed_between_record_and_act_the_next_start_finds_that_nothing_was_done(machine: Machine) -> None:
    killed_between_record_and_act(machine)
    machine.put(SWAPPINESS, "60")
    machine.start()
    record = machine.until_phase("vm.swappiness", Phase.REVERTED)
    assert record.message == "it was cut off before it was done"
    assert machine.get(SWAPPINESS) == "60"


def test_killed_between_act_and_reading_back_the_next_start_takes_it_over(machine: Machine) -> None:
    killed_between_act_and_reading_back(machine)
    machine.put(SWAPPINESS, "10")
    machine.wish(swap())
    process = machine.start()
    machine.until_phase("vm.swappiness", Phase.IN_FORCE)
    assert machine.end(process) == 0
    assert machine.get(SWAPPINESS) == "60"


def test_killed_between_act_and_reading_back_the_next_start_puts_back_what_is_no_longer_wanted(
    machine: Machine,
) -> None:
    killed_between_act_and_reading_back(machine)
    machine.put(SWAPPINESS, "10")
    machine.wish()
    machine.start()
    machine.until_phase("vm.swappiness", Phase.REVERTED)
    assert machine.get(SWAPPINESS) == "60"


def test_killed_between_act_and_reading_back_and_changed_by_somebody_it_is_left_alone(machine: Machine) -> None:
    killed_between_act_and_reading_back(machine)
    machine.put(SWAPPINESS, "33")
    machine.start()
    machine.until_phase("vm.swappiness", Phase.FOREIGN)
    assert machine.get(SWAPPINESS) == "33"


@pytest.mark.parametrize(
    ("value", "phase"),
    [
        pytest.param("60", Phase.REVERTED, id="gone with the reboot"),
        pytest.param("10", Phase.FOREIGN, id="the node's own configuration has it"),
    ],
)
def test_after_a_reboot_nothing_is_written(machine: Machine, value: str, phase: Phase) -> None:
    machine.wish(swap())
    process = machine.start()
    machine.until_phase("vm.swappiness", Phase.IN_FORCE)
    machine.end(process, signal.SIGKILL)
    machine.put(BOOT_ID, "another-boot")
    machine.put(SWAPPINESS, value)
    machine.start()
    assert "reboot" in machine.until_phase("vm.swappiness", phase).message
    assert machine.get(SWAPPINESS) == value


# --- cards -----------------------------------------------------------------------------------------------------------


def test_a_card_is_never_capped_at_its_default_nor_below_70_percent(machine: Machine) -> None:
    machine.wish(action(Verb.POWER_CAP, (UUIDS[0], "700000"), (UUIDS[1], "489000"), (UUIDS[2], "630000")))
    machine.start()
    assert (
        "700 W is the present limit, the card's default: nothing to do"
        in machine.until_phase(UUIDS[0], Phase.REFUSED).message
    )
    assert "below 490 W" in machine.until_phase(UUIDS[1], Phase.REFUSED).message
    assert "Not Found" in machine.until_phase(UUIDS[2], Phase.REFUSED).message
    assert machine.limits() == [700_000, 650_000]


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        pytest.param({"refuse": True}, "Insufficient Permissions", id="not allowed"),
        pytest.param({"round": 100_000}, "the host made 600 W of it", id="another value than was asked for"),
        pytest.param({"garbage": True}, "without an answer", id="an answer that cannot be read"),
    ],
)
def test_a_card_that_does_not_do_as_told_is_left_as_it_was(
    machine: Machine, fault: dict[str, Any], message: str
) -> None:
    machine.cards_say(**fault)
    machine.wish(action(Verb.POWER_CAP, (UUIDS[0], "630000")))
    machine.start()
    assert message in machine.until_phase(UUIDS[0], Phase.REFUSED).message
    assert machine.limits() == [700_000, 650_000]


def test_nvml_that_hangs_holds_up_nothing_else_and_the_cap_goes_when_it_answers_again(machine: Machine) -> None:
    machine.wish(action(Verb.POWER_CAP, (UUIDS[0], "630000"), name="caps"))
    machine.start("--nvml-deadline", "2s")
    machine.until_phase(UUIDS[0], Phase.IN_FORCE)
    machine.cards_say(hang=True)
    machine.wish(swap())
    machine.until_phase(UUIDS[0], Phase.REVERT_FAILED)
    machine.until_phase("vm.swappiness", Phase.IN_FORCE)
    assert machine.limits() == [630_000, 650_000]
    machine.cards_say(hang=None)
    machine.until_phase(UUIDS[0], Phase.REVERTED)
    assert machine.limits() == [700_000, 650_000]


# --- what it is not ----------------------------------------------------------------------------------------------------


def test_nothing_outside_the_list_touches_anything(machine: Machine) -> None:
    before = machine.tree()
    machine.wish(
        action(
            Verb.SYSCTL, ("vm.overcommit_memory", "1"), ("../../../etc/passwd", "x"), ("vm.swappiness", "101"), name="s"
        ),
        action(Verb.CPUFREQ, ("cpu0/scaling_governor", "performance"), ("cpu/scaling_max_freq", "1"), name="c"),
        action(
            Verb.CPUFREQ, ("cpu/scaling_governor", "ondemand"), ("cpu/energy_performance_preference", "power"), name="d"
        ),
        action(Verb.POWER_CAP, ("vm.swappiness", "10"), ("gpu-0", "630000"), name="p"),
    )
    machine.start()
    machine.until(lambda: len({record.action for record in machine.records()}) == 4, "all are judged")
    assert {record.phase for record in machine.records()} == {Phase.REFUSED}
    assert machine.tree() == before
    assert machine.limits() == [700_000, 650_000]


def test_a_record_that_names_something_else_or_an_impossible_value_is_not_followed(machine: Machine) -> None:
    before = machine.tree()
    sound = Record(
        "a", Verb.SYSCTL, "vm.overcommit_memory", "2", "0", "", "", "p", datetime.now(UTC), 60, BOOT, Phase.IN_FORCE
    )
    other = replace(sound, target="vm.swappiness", old="60; x", new="60")
    machine.state.mkdir()
    write_records(machine.state, Records(datetime.now(UTC), (sound, other)))
    process = machine.start()
    machine.until(lambda: set(machine.phases().values()) == {Phase.REVERT_FAILED}, "they cannot be put back")
    assert machine.tree() == before
    assert machine.end(process) == 1, "and that is told at the end"


def test_a_second_actuator_waits_for_the_first_to_end(machine: Machine) -> None:
    machine.wish(swap())
    first = machine.start()
    machine.until_phase("vm.swappiness", Phase.IN_FORCE)
    second = machine.start()
    machine.until(lambda: "waiting for another actuator" in machine.log.read_text(), "it waits")
    assert machine.end(first) == 0
    assert machine.get(SWAPPINESS) == "60"
    machine.wish(swap("b", "5"))
    machine.until(lambda: machine.get(SWAPPINESS) == "5", "the second has taken over")
    assert machine.end(second) == 0


def test_once_does_what_is_wanted_and_leaves_it(machine: Machine) -> None:
    machine.wish(swap())
    assert machine.start("--once").wait(LIMIT_S) == 0
    assert machine.get(SWAPPINESS) == "10"
    machine.wish()
    assert machine.start("--once").wait(LIMIT_S) == 0
    assert machine.get(SWAPPINESS) == "60"


def test_every_change_is_a_line_of_json(machine: Machine) -> None:
    machine.wish(swap())
    process = machine.start()
    machine.until_phase("vm.swappiness", Phase.IN_FORCE)
    machine.end(process)
    lines = [json.loads(line) for line in machine.log.read_text().splitlines()]
    changes = [(line["event"], line["target"]) for line in lines if "target" in line]
    assert changes == [(phase, "vm.swappiness") for phase in ("Recorded", "InForce", "Reverted")]
    assert all({"level", "timestamp"} <= set(line) for line in lines)


# --- what lies in the folder -----------------------------------------------------------------------------------------


IN_FORCE = Record(
    "a", Verb.SYSCTL, "vm.swappiness", "60", "10", "", "", "p", datetime.now(UTC), 60, BOOT, Phase.IN_FORCE
)


def test_after_lost_records_nothing_begins_until_somebody_has_looked(machine: Machine) -> None:
    machine.wish(swap())
    process = machine.start()
    machine.until_phase("vm.swappiness", Phase.IN_FORCE)
    machine.end(process, signal.SIGKILL)
    records = machine.state / "records.json"
    records.write_bytes(records.read_bytes()[:-40])
    machine.wish(swap("b", "5"))
    process = machine.start()
    machine.until((machine.state / "records.json.broken").exists, "they are kept aside")
    assert "could not be read" in machine.until_phase("vm.swappiness", Phase.REFUSED).message
    assert machine.get(SWAPPINESS) == "10", "what is there may be ours and may be anybody's"
    machine.end(process)
    process = machine.start()
    machine.wish(swap("c", "5"))
    machine.until(lambda: {record.action for record in machine.records()} == {"b", "c"}, "it is refused again")
    assert {record.phase for record in machine.records()} == {Phase.REFUSED}
    machine.end(process)
    (machine.state / "records.json.broken").unlink()
    machine.start()
    machine.wish(swap("d", "5"))
    machine.until(lambda: machine.get(SWAPPINESS) == "5", "it goes on")


def test_records_that_cannot_be_read_now_are_not_given_up(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.state.mkdir()
    write_records(machine.state, Records(datetime.now(UTC), (IN_FORCE,)))
    really = os.open

    def out_of_handles(path: Any, *rest: Any) -> int:
        if Path(path).name == "records.json":
            raise OSError(errno.EMFILE, "Too many open files")
        return really(path, *rest)

    words = program.parser({}).parse_args(["--state-dir", str(machine.state), "--root", str(machine.root)])
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", out_of_handles)
        assert program._run(words, threading.Event()) == 1
    assert machine.records() == (IN_FORCE,)


def test_a_disk_that_has_turned_read_only_keeps_nothing_from_being_put_back(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.put(SWAPPINESS, "10")
    machine.state.mkdir()
    write_records(machine.state, Records(datetime.now(UTC), (IN_FORCE,)))
    (machine.state / ".actuator.lock").touch()
    really = os.open

    def read_only(path: Any, flags: int, *rest: Any) -> int:
        if flags & (os.O_CREAT | os.O_WRONLY) and machine.state in Path(path).parents:
            raise OSError(errno.EROFS, "Read-only file system")
        return really(path, flags, *rest)

    def no_owner(*_: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "open", read_only)
    monkeypatch.setattr(os, "chown", no_owner)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    with pytest.raises(SystemExit) as ended:
        program.main(
            ["--state-dir", str(machine.state), "--root", str(machine.root), "--agent-group", "65532", "--once"]
        )
    assert ended.value.code == 0
    assert machine.get(SWAPPINESS) == "60"


def test_a_fault_of_its_own_puts_everything_back(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([Found(Wish(datetime.now(UTC), BOOT, (swap(),)))])
    seen = []

    def once(_: Path) -> Found[Wish]:
        seen.append(machine.get(SWAPPINESS))
        return next(answers)  # then StopIteration, as any other fault

    monkeypatch.setattr(program, "read_wish", once)
    machine.state.mkdir()
    words = program.parser({}).parse_args(
        ["--state-dir", str(machine.state), "--root", str(machine.root), "--interval", "1ms"]
    )
    assert program._run(words, threading.Event()) == 1
    assert seen == ["60", "10"]
    assert machine.get(SWAPPINESS) == "60"


def test_a_lock_that_somebody_else_put_there_holds_nobody_up(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.state.mkdir()
    theirs = os.open(machine.state / ".actuator.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(theirs, fcntl.LOCK_EX)
    really = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: really + 1)
    ours = program._lock(machine.state)
    assert program._alone(ours, threading.Event())
    os.close(theirs)
    os.close(ours)


def test_the_folder_becomes_that_of_the_actuator(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "chown", lambda _, user, group: given.append((user, group)))
    program._prepare(machine.state, "65532")
    assert given == [(os.geteuid(), 65532)], "the sticky bit does not hold the owner of a folder back"
    assert machine.state.stat().st_mode & 0o7777 == 0o1770
