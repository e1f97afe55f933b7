"""docs/node-checks.md is what the table of checks says, with one section and one anchor for each."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from hisparse.nodes.catalogue import Check, Threshold
from hisparse.nodes.checks import BY_ID, CHECKS
from hisparse.nodes.findings import State
from hisparse_agent.judge.faults import XID_CRITICAL, XID_WARN
from hisparse_agent.readings import NVLINK_XIDS
from hisparse_toolkit import generate
from hisparse_toolkit.node_checks_page import FILE, levels_of, page

DOCS = Path(__file__).parents[2] / "docs"
EACH = pytest.mark.parametrize("row", CHECKS, ids=lambda row: row.id)


def sections() -> dict[str, str]:
    """By anchor."""
    _, *found = re.split(r'(?m)^<a id="(.*)"></a>$', (DOCS / FILE).read_text())
    return dict(zip(found[::2], found[1::2], strict=True))


def test_the_page_is_what_the_table_says(tmp_path: Path) -> None:
    """`make generate` was run after the last change of a check."""
    generate.write_pages(tmp_path)
    assert (DOCS / FILE).read_text() == (tmp_path / FILE).read_text(), f"docs/{FILE} is stale; run make generate"


def test_every_check_has_its_own_anchor_and_nothing_else_has_one() -> None:
    anchors = re.findall(r'<a id="(.*)"></a>', (DOCS / FILE).read_text())
    assert anchors == [row.anchor for row in CHECKS]
    assert len(set(anchors)) == len(anchors)
    assert all(re.fullmatch(r"[a-z0-9-]+", anchor) for anchor in anchors)


@EACH
def test_a_section_says_all_of_its_row(row: Check) -> None:
    section = sections()[row.anchor]
    assert f"## {row.id}\n" in section
    told = section.replace(r"\|", "|").replace("&lt;", "<")
    parts = [row.summary, row.signal, row.remedy, row.source, row.runbook, *(verb.value for verb in row.verbs)]
    if levels_of(row):
        parts += [row.reason, row.cost, row.condition or "feeds none"]
    for part in parts:
        assert part in told
    assert "{" not in re.sub(r"`[^`]*`", "", section), "a word that was not filled in"


def test_links_within_the_documents_lead_to_an_anchor() -> None:
    anchors = {row.anchor for row in CHECKS}
    for path in DOCS.rglob("*.md"):
        pattern = r"\]\(#([^)]*)\)" if path.name == FILE else r"node-checks\.md#([a-z0-9-]+)"
        assert set(re.findall(pattern, path.read_text())) <= anchors, path.name


def test_words_about_xids_name_the_numbers_that_the_judge_knows() -> None:
    def numbers(text: str) -> set[int]:
        return {int(number) for number in re.findall(r"\d+", text)}

    row = BY_ID["xid"]
    assert numbers(row.critical_when) == XID_CRITICAL
    assert numbers(row.warn_when) == XID_WARN | {min(NVLINK_XIDS), max(NVLINK_XIDS)}


def lines_of(row: Check) -> dict[str, str]:
    (section,) = page([row]).split("## ")[1:]
    return dict(re.findall(r"(?m)^\| ([^|]+) \| (.+) \|$", section))


PLAIN = replace(
    BY_ID["nvml.latency"], warn_when="", critical_when="", threshold=Threshold(), leave_polls=2, pin_grace=False
)


@pytest.mark.parametrize(
    ("row", "name", "text"),
    [
        pytest.param(replace(PLAIN, threshold=Threshold("1")), "Warn", "above 1 s", id="a limit"),
        pytest.param(replace(PLAIN, threshold=Threshold("1")), "Critical", "never", id="none"),
        pytest.param(
            replace(PLAIN, unit="celsius", threshold=Threshold("10", "2", rising=False, inclusive=True, leave="15")),
            "ends",
            "after 2 good polls in a row (30 s), where good is above 15 C",
            id="a limit of its own for the end",
        ),
        pytest.param(
            replace(PLAIN, unit="celsius", threshold=Threshold("10", "2", rising=False, inclusive=True)),
            "Critical",
            "2 C or less",
            id="less is worse, and the limit is bad already",
        ),
        pytest.param(
            replace(PLAIN, unit="ratio", threshold=Threshold("0.125"), warn_when="waits: {limit}"),
            "Warn",
            "waits: above 12.5 %",
            id="words around a limit",
        ),
        pytest.param(
            replace(PLAIN, unit="count", profiles={"a": Threshold("12"), "b": Threshold("12"), "c": Threshold("1800")}),
            "Warn",
            "a, b: above 12; c: above 1,800",
            id="products",
        ),
        pytest.param(
            replace(PLAIN, threshold=Threshold("1"), leave_polls=None),
            "ends",
            "when the node is booted again, or a person says so",
            id="it stays",
        ),
        pytest.param(
            replace(PLAIN, threshold=Threshold("1", "2"), critical_enter_polls=1),
            "begins",
            "a warning after 3 bad polls in a row (45 s), critical after one such poll",
            id="two patiences",
        ),
        pytest.param(
            replace(PLAIN, threshold=Threshold("1"), boot_grace_s=300, pin_grace=True),
            "grace",
            "no fault in the first 5 minutes after boot; no fault while an engine pins its pool",
            id="grace",
        ),
    ],
)
def test_how_a_row_is_told(row: Check, name: str, text: str) -> None:
    assert lines_of(row)[name] == text


def test_information_has_no_patience_to_tell() -> None:
    assert levels_of(BY_ID["pin.window"]) == frozenset()
    assert set(lines_of(BY_ID["pin.window"])) == {
        "looks at",
        "Warn",
        "Critical",
        "what a person does",
        "what a policy may allow",
        "source",
    }
    assert levels_of(BY_ID["nvlink.links"]) == {State.CRITICAL}
    assert levels_of(BY_ID["host.mem.numa"]) == {State.WARN, State.CRITICAL}
