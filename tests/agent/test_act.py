"""The actuator's decisions on a host in memory that rounds, refuses and answers with what nobody expected."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path

import pytest
from remedy_shapes import BOOT, NOW, UUIDS

from hisparse.nodes.catalogue import Verb
from hisparse_agent.actuator.act import Actuator
from hisparse_agent.actuator.bounds import PowerLimits, Setting
from hisparse_agent.actuator.hosts import MachineHost, Step
from hisparse_agent.exchange import read_records, write_records
from hisparse_agent.records import CLOCK_STEP, Change, Phase, Record, Records, Wanted, Wish

SWAP = "vm.swappiness"
PREFERENCE = "cpu0/energy_performance_preference"
H200 = PowerLimits(700_000, 200_000, 700_000)


class Host:
    """Settings in memory. rounds: what the host makes of a value. refuses_from: the change from which all fail."""

    def __init__(self) -> None:
        self.values = {SWAP: "60", "kernel.numa_balancing": "1", PREFERENCE: "128", **dict.fromkeys(UUIDS, "700000")}
        self.rounds: dict[str, str] = {}
        self.refuses_from: int | None = None
        self.changes = 0
        self.looks = 0

    def boot_id(self) -> str:
        return BOOT

    def targets(self, verb: Verb, target: str) -> tuple[str, ...]:
        return (PREFERENCE,) if verb is Verb.CPUFREQ else (target,)

    def look(self, verb: Verb, targets: Sequence[str]) -> Mapping[str, Setting | str]:
        self.looks += 1
        power = H200 if verb is Verb.POWER_CAP else None
        offered = ("performance", "power") if verb is Verb.CPUFREQ else ()
        return {one: Setting(one, self.values[one], power=power, offered=offered) for one in targets}

    def change(self, verb: Verb, steps: Sequence[Step]) -> Mapping[str, str]:
        del verb
        faults = {}
        for one in steps:
            self.changes += 1
            if self.refuses_from is not None and self.changes >= self.refuses_from:
                faults[one.target] = "it is busy"
            elif self.values[one.target] != one.expected:
                faults[one.target] = "it is not as expected"
            else:
                self.values[one.target] = self.rounds.get(one.new, one.new)
        return faults


def wanted(*changes: Change, verb: Verb = Verb.SYSCTL, name: str = "a") -> Wanted:
    return Wanted(name, verb, changes or (Change(SWAP, "10"),), "why", "host.swap", "p", 3600, NOW)


def started(host: Host, before: Records | None = None, *, idle: str = "") -> Actuator:
    actuator = Actuator(host, lambda _: None, lambda _: None, idle=idle)
    actuator.start(before, NOW, 0)
    return actuator


def test_what_could_not_be_put_back_is_not_changed() -> None:
    host = Host()
    # a raw figure is none of the words that the driver offers, and is not taken back by every driver
    change = Change("cpu/energy_performance_preference", "performance")
    actuator = started(host)
    actuator.poll(Wish(NOW, BOOT, (wanted(change, verb=Verb.CPUFREQ),)), NOW, 0)
    (record,) = actuator.records
    assert record.phase is Phase.REFUSED
    assert "128, and that could not be put back" in record.message
    assert host.values[PREFERENCE] == "128"


def test_another_value_that_the_host_made_of_ours_is_ours_until_it_is_put_back() -> None:
    host = Host()
    host.rounds["630000"] = "600000"
    host.refuses_from = 2
    actuator = started(host)
    actuator.poll(Wish(NOW, BOOT, (wanted(Change(UUIDS[0], "630000"), verb=Verb.POWER_CAP),)), NOW, 0)
    assert [record.phase for record in actuator.holding] == [Phase.REVERT_FAILED]
    host.refuses_from = None
    actuator.poll(Wish(NOW, BOOT, ()), NOW, 100)
    assert host.values[UUIDS[0]] == "700000"
    assert actuator.holding == ()


@pytest.mark.parametrize(
    ("back", "left"),
    [
        pytest.param(timedelta(seconds=5), "10", id="a clock that is set by seconds"),
        pytest.param(timedelta(days=365), "60", id="a clock that was a year ahead"),
    ],
)
def test_a_clock_that_is_set_back_makes_no_change_stay_longer(back: timedelta, left: str) -> None:
    assert timedelta(seconds=5) < CLOCK_STEP
    host = Host()
    actuator = started(host)
    actuator.poll(Wish(NOW, BOOT, (wanted(),)), NOW, 0)
    now = NOW - back
    actuator.poll(Wish(now, BOOT, (wanted(),)), now, 60)
    assert host.values[SWAP] == left


def test_who_is_idle_begins_nothing_and_puts_back_what_is_in_force() -> None:
    host = Host()
    before = Record("old", Verb.SYSCTL, SWAP, "33", "60", "", "", "p", NOW, 3600, BOOT, Phase.IN_FORCE)
    actuator = started(host, Records(NOW, (before,)), idle="somebody has to look first")
    actuator.poll(Wish(NOW, BOOT, (wanted(Change("kernel.numa_balancing", "0")),)), NOW, 0)
    assert {record.action: record.phase for record in actuator.records} == {"old": Phase.REVERTED, "a": Phase.REFUSED}
    assert "somebody has to look first" in {record.message for record in actuator.records}
    assert (host.values[SWAP], host.values["kernel.numa_balancing"]) == ("33", "1")


def test_a_wish_for_many_cards_looks_at_them_at_once() -> None:
    host = Host()
    changes = tuple(Change(uuid, "630000") for uuid in UUIDS)
    actuator = started(host)
    actuator.poll(Wish(NOW, BOOT, (wanted(*changes, verb=Verb.POWER_CAP),)), NOW, 0)
    assert len(actuator.holding) == len(UUIDS)
    assert host.looks == 2, "before and after"


def test_no_wish_makes_records_that_cannot_be_read_again(tmp_path: Path) -> None:
    host = Host()
    actuator = Actuator(host, lambda records: write_records(tmp_path, records), lambda _: None)
    actuator.start(None, NOW, 0)
    long = wanted(Change("kernel.numa_balancing", "9" * 256), Change("x" * 256, "y" * 256), name="b" * 256)
    huge = wanted(Change("kernel.numa_balancing", "9" * 1024), name="c")
    actuator.poll(Wish(NOW, BOOT, (wanted(), long, huge)), NOW, 0)
    assert host.values[SWAP] == "10"
    found = read_records(tmp_path, own=True)
    assert not found.fault
    assert found.content
    assert {record.action: record.phase for record in found.content.records} == {
        "a": Phase.IN_FORCE,
        "b" * 256: Phase.REFUSED,
        "c": Phase.REFUSED,
    }


def test_no_process_for_nvml_is_no_reason_to_leave_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("vm/swappiness", "10"), ("kernel/random/boot_id", BOOT)):
        path = tmp_path / "proc/sys" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(value)

    def no_more_processes(*_: object, **__: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr("subprocess.Popen", no_more_processes)
    card = Record("p", Verb.POWER_CAP, UUIDS[0], "700000", "630000", "", "", "p", NOW, 60, BOOT, Phase.IN_FORCE)
    swap = Record("a", Verb.SYSCTL, SWAP, "60", "10", "", "", "p", NOW, 60, BOOT, Phase.IN_FORCE)
    actuator = Actuator(MachineHost(tmp_path, 5), lambda _: None, lambda _: None)
    actuator.start(Records(NOW, (card, swap)), NOW, 0)
    actuator.stop(NOW, 1)
    assert (tmp_path / "proc/sys/vm/swappiness").read_text().strip() == "60"
    (left,) = actuator.holding
    assert left.target == UUIDS[0]
    assert "no process could be started" in left.message
