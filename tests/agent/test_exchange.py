import errno
import json
import os
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hisparse.nodes.catalogue import Verb
from hisparse_agent import exchange
from hisparse_agent.exchange import read_records, read_wish, write_records, write_wish
from hisparse_agent.records import (
    FORMAT,
    RECORDS_FILE,
    WANTED_FILE,
    Change,
    Phase,
    Record,
    Records,
    Wanted,
    Wish,
    covers,
)

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
ACTION = Wanted("a", Verb.SYSCTL, (Change("vm.swappiness", "10"),), "swaps", "host.swap", "p", 3600, NOW)
WISH = Wish(NOW, "boot", (ACTION,))
RECORD = Record(
    "a", Verb.SYSCTL, "vm.swappiness", "60", "10", "swaps", "host.swap", "p", NOW, 3600, "boot", Phase.IN_FORCE
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
TIMES = st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=30))]))
RECORDS = st.builds(
    Record, TEXT, st.sampled_from(Verb), TEXT, TEXT, TEXT, TEXT, TEXT, TEXT, TIMES, st.integers(), TEXT,
    st.sampled_from(Phase), TEXT, st.none() | TIMES,
)  # fmt: skip


@given(records=st.lists(RECORDS, max_size=4), written=TIMES)
def test_records_come_back_as_they_were(
    tmp_path_factory: pytest.TempPathFactory, records: list[Record], written: datetime
) -> None:
    folder = tmp_path_factory.mktemp("state")
    write_records(folder, Records(written, tuple(records)))
    assert read_records(folder, own=True).content == Records(written, tuple(records))
    assert read_records(folder, own=False).content == Records(written, tuple(records))


def test_a_wish_comes_back_as_it_was_and_nothing_else_is_left_in_the_folder(tmp_path: Path) -> None:
    (tmp_path / f".{WANTED_FILE}.new").write_text("of one who was killed while writing")
    write_wish(tmp_path, WISH)
    write_wish(tmp_path, replace(WISH, boot_id="another"))
    assert read_wish(tmp_path).content == replace(WISH, boot_id="another")
    assert [path.name for path in tmp_path.iterdir()] == [WANTED_FILE]
    assert (tmp_path / WANTED_FILE).stat().st_mode & 0o777 == 0o644


def test_nothing_there_is_nothing_wrong(tmp_path: Path) -> None:
    assert read_wish(tmp_path) == exchange.Found(None)
    assert read_records(tmp_path, own=True) == exchange.Found(None)


def good() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(exchange._WISH.dump_json(exchange._WishFile(FORMAT, WISH)))
    return document


def changed(path: str, value: object) -> str:
    document = good()
    *way, last = path.split(".")
    place: Any = document
    for name in way:
        place = place[int(name)] if name.isdigit() else place[name]
    place[last] = value
    return json.dumps(document)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        pytest.param("", "", id="empty"),
        pytest.param("{", "", id="cut off"),
        pytest.param("\x00" * 64, "", id="what a disk leaves after a power cut"),
        pytest.param("[" * 100_000, "", id="deep"),
        pytest.param(changed("format", 2), "its format is 2", id="of a newer version"),
        pytest.param(changed("content.actions.0.verb", "reboot"), "verb", id="no such verb"),
        pytest.param(changed("content.actions.0.ttl_seconds", "3600"), "ttl_seconds", id="text for a number"),
        pytest.param(changed("content.written", "2026-11-30T12:00:00"), "zone", id="a time without a zone"),
        pytest.param(changed("content.actions.0.reason", "x" * 257), "256 characters", id="a long text"),
        pytest.param(changed("content.actions", good()["content"]["actions"] * 33), "32 actions", id="many actions"),
        pytest.param(changed("content.actions.0.changes", [{"target": "t", "new": "1"}] * 65), "64", id="many changes"),
        pytest.param(" " * (256 * 1024 + 1), "larger", id="a large file"),
    ],
)
def test_a_broken_wish_is_none_and_is_kept_aside(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / WANTED_FILE).write_text(text)
    found = read_wish(tmp_path)
    assert found.content is None
    assert why in found.fault
    assert found.fault
    assert [path.name for path in tmp_path.iterdir()] == [f"{WANTED_FILE}.broken"]
    assert (tmp_path / f"{WANTED_FILE}.broken").read_text() == text
    assert read_wish(tmp_path).fault == "", "it is told once"


def test_no_link_is_followed_and_no_pipe_waited_for(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    write_wish(tmp_path, WISH)
    (tmp_path / WANTED_FILE).rename(elsewhere)
    (tmp_path / WANTED_FILE).symlink_to(elsewhere)
    assert "cannot be opened" in read_wish(tmp_path).fault
    (tmp_path / f"{WANTED_FILE}.broken").unlink()
    os.mkfifo(tmp_path / WANTED_FILE)
    assert "not a regular file" in read_wish(tmp_path).fault
    (tmp_path / f"{WANTED_FILE}.broken").unlink()
    (tmp_path / WANTED_FILE).mkdir()
    assert "not a regular file" in read_wish(tmp_path).fault


def test_writing_replaces_a_link_and_not_what_it_points_to(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    for name in (RECORDS_FILE, f".{RECORDS_FILE}.new"):
        (tmp_path / name).symlink_to(victim)
    write_records(tmp_path, Records(NOW, (RECORD,)))
    assert victim.read_text() == "precious"
    assert read_records(tmp_path, own=True).content == Records(NOW, (RECORD,))


def test_the_actuator_believes_records_of_its_own_account_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_records(tmp_path, Records(NOW, (RECORD,)))
    mine = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
    assert f"belongs to account {mine}" in read_records(tmp_path, own=True).fault
    assert not (tmp_path / RECORDS_FILE).exists()


def test_a_folder_where_the_new_file_should_be_keeps_nobody_from_writing(tmp_path: Path) -> None:
    (tmp_path / f".{RECORDS_FILE}.new" / "x").mkdir(parents=True)
    for phase in (Phase.RECORDED, Phase.IN_FORCE):
        write_records(tmp_path, Records(NOW, (replace(RECORD, phase=phase),)))
    assert read_records(tmp_path, own=True).content == Records(NOW, (RECORD,))
    assert {path.name for path in tmp_path.iterdir()} == {RECORDS_FILE, f".{RECORDS_FILE}.new"}


@pytest.mark.parametrize(
    "records",
    [
        pytest.param((replace(RECORD, message="x" * 1025),), id="a long text"),
        pytest.param((replace(RECORD, reason="\x01" * 1024),) * 1400, id="many with long texts"),
    ],
)
def test_what_could_not_be_read_again_is_not_written(tmp_path: Path, records: tuple[Record, ...]) -> None:
    write_records(tmp_path, Records(NOW, (RECORD,)))
    with pytest.raises(OSError, match="larger than what is read again") as refused:
        write_records(tmp_path, Records(NOW, records))
    assert refused.value.errno == errno.EFBIG
    assert read_records(tmp_path, own=True).content == Records(NOW, (RECORD,))


def test_a_file_that_cannot_be_read_now_stays_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_wish(tmp_path, WISH)
    write_records(tmp_path, Records(NOW, (RECORD,)))

    def out_of_handles(*_: Any) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", out_of_handles)
        assert "Too many open files" in read_wish(tmp_path).fault
        assert "Too many open files" in read_records(tmp_path, own=False).fault
        with pytest.raises(OSError, match="Too many open files"):
            read_records(tmp_path, own=True)
    assert read_wish(tmp_path).content == WISH
    assert read_records(tmp_path, own=True).content == Records(NOW, (RECORD,))
    assert exchange.lost_records(tmp_path) is None


def test_the_agent_leaves_broken_records_where_they_are(tmp_path: Path) -> None:
    (tmp_path / RECORDS_FILE).write_text("{")
    assert read_records(tmp_path, own=False).fault
    assert (tmp_path / RECORDS_FILE).exists()


@pytest.mark.parametrize(
    ("target", "recorded", "whether"),
    [
        pytest.param("vm.swappiness", "vm.swappiness", True, id="itself"),
        pytest.param("cpu/scaling_governor", "cpu7/scaling_governor", True, id="all CPUs, one of them"),
        pytest.param("cpu/scaling_governor", "cpu7/energy_performance_preference", False, id="another setting"),
        pytest.param("cpu/scaling_governor", "cpu/scaling_governor", True, id="all CPUs, refused as a whole"),
        pytest.param("cpu/scaling_governor", "cpux/scaling_governor", False, id="no CPU"),
    ],
)
def test_what_a_target_covers(target: str, recorded: str, whether: bool) -> None:
    assert covers(target, recorded) is whether
