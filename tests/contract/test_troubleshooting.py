"""docs/troubleshooting.md is what the catalogue says, whole, and what it names exists."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from hisparse_operator.decide.catalogue import EVENTS, REASONS, TYPES
from hisparse_operator.decide.catalogue.entry import Entry, EventEntry
from hisparse_operator.decide.reasons import ConditionType
from hisparse_operator.health import Limits
from hisparse_toolkit import generate
from hisparse_toolkit.cli import app
from hisparse_toolkit.troubleshooting_page import FILE

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGE = (DOCS / FILE).read_text()
ENTRIES = (*REASONS, *EVENTS)
EACH = pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: str(entry.word))
ANCHOR = re.compile(r'(?m)^<a id="(.*)"></a>$')

VERBS = {
    *("get", "describe", "logs", "delete", "annotate", "label", "uncordon", "cordon", "scale", "patch", "explain"),
    *("apply", "port-forward", "rollout", "auth"),
}
KINDS = {
    *("node", "nodes", "pod", "pods", "pvc", "quota", "rs", "lease", "events", "deploy", "secrets", "configmaps"),
    *("endpointslices", "controllerrevisions", "daemonset", "KIND"),
    *(resource.short_name for resource in generate.RESOURCES),
}


def sections() -> dict[str, str]:
    """By anchor, each up to the next one."""
    _, *found = ANCHOR.split(PAGE)
    return dict(zip(found[::2], found[1::2], strict=True))


def commands() -> list[str]:
    """Every line of a shell block, and every piece of inline code that is a command; pipes are taken apart."""
    blocks = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]
    inline = [
        " ".join(text.split()) for text in re.findall(r"`([^`]+)`", re.sub(r"```sh\n.*?```", "", PAGE, flags=re.DOTALL))
    ]
    found = [one for line in (*blocks, *inline) for one in re.split(r" \| ", line.split("  #")[0].strip())]
    return sorted({one for one in found if one.split(" ")[0] in ("kubectl", "hisparse")})


def test_the_page_is_what_the_catalogue_says(tmp_path: Path) -> None:
    """`make generate` was run after the last change of the catalogue."""
    generate.write_pages(tmp_path)
    assert (tmp_path / FILE).read_text() == PAGE, f"docs/{FILE} is stale; run make generate"


@EACH
def test_every_reason_has_a_section_with_all_three_texts(entry: Entry | EventEntry) -> None:
    sort = "reason" if isinstance(entry, Entry) else "event"
    section = sections()[f"{sort}-{entry.word.lower()}"]
    assert section.startswith(f"\n### {entry.word}\n")
    for text in (entry.means, f"**Check:** {entry.check}", f"**Do:** {entry.do}"):
        assert text in section


@EACH
def test_texts_are_whole_sentences(entry: Entry | EventEntry) -> None:
    for text in (entry.means, entry.check, entry.do):
        assert text.endswith("."), text
        assert text[0].isupper() or text[0] == "`" or text.startswith(("spec.", "status.")), text
    assert "`" in entry.check, "a command"


def test_every_condition_lists_its_reasons_by_status() -> None:
    for kind in TYPES:
        rows = dict(
            re.findall(r"(?m)^\| (True|False|Unknown) \| (.*) \|$", sections()[f"condition-{kind.word.lower()}"])
        )
        told = {(status, word) for status, cell in rows.items() for word in re.findall(r"\[(\w+)\]", cell)}
        assert told == {(s.value, str(one.word)) for one in REASONS for k, s in one.stands if k is kind.word}


def test_what_stands_in_the_column_reason_is_in_the_list_of_the_first_page() -> None:
    top = PAGE.split('<a id="', 1)[0]
    for one in REASONS:
        if any(kind is ConditionType.READY for kind, _ in one.stands):
            assert f"\n| [{one.word}](#reason-{one.word.lower()}) |" in top


def test_anchors_are_unique_and_links_lead_somewhere() -> None:
    anchors = ANCHOR.findall(PAGE)
    assert len(set(anchors)) == len(anchors)
    assert set(re.findall(r"\]\(#([^)]*)\)", PAGE)) <= set(anchors)
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", PAGE):
        assert (DOCS / target).exists(), target
    assert "docs/troubleshooting.md" in (ROOT / "README.md").read_text()


def options_of(name: str) -> set[str]:
    command: Any = typer.main.get_command(app)
    return {word for parameter in command.commands[name].params for word in parameter.opts}


@pytest.mark.parametrize("command", commands())
def test_a_command_names_verbs_kinds_and_options_that_exist(command: str) -> None:
    program, *words = shlex.split(command)
    if program == "hisparse":
        assert {word for word in words if word.startswith("-") and word != "-"} <= options_of(words[0])
        return
    if words[0] == "-n":
        words = words[2:]
    verb, *rest = words
    assert verb in VERBS
    if verb in ("logs", "port-forward", "uncordon", "cordon", "auth", "apply") or rest[0] == "--raw":
        return
    kinds = rest[1] if verb == "rollout" else rest[0]
    assert set(re.split(r"[/,.]", kinds)[:1]) <= KINDS, command


def paths(schema: dict[str, Any], at: str) -> set[str]:
    found = {at}
    for name, child in (schema.get("properties") or {}).items():
        found |= paths(child, f"{at}.{name}")
    return found


def test_fields_exist() -> None:
    known: set[str] = {"spec.taints", "spec.schedulingGates", "spec.nodeName"}  # of nodes and pods
    for resource in generate.RESOURCES:
        document = yaml.safe_load((ROOT / "crds" / resource.file).read_text())
        (version,) = document["spec"]["versions"]
        known |= paths(version["schema"]["openAPIV3Schema"], "")
    known = {one.lstrip(".") for one in known}
    named = {one.rstrip(".") for one in re.findall(r"\b(?:spec|status)(?:\.[a-zA-Z]+)+", PAGE)}
    assert named - known == set()


def test_metrics_log_lines_and_limits_of_the_operator_are_its_own() -> None:
    source = "\n".join(path.read_text() for path in (ROOT / "operator/hisparse_operator").rglob("*.py"))
    metrics = set(re.findall(r"`(hisparse_operator_\w+)", PAGE))
    assert len(metrics) > 5
    for name in metrics:
        assert f'"{name.removesuffix("_total")}"' in source, name
    rows = sections()["operator"].split("| event | what it says |")[1].split("\n\n")[0]
    lines = [one for row in re.findall(r"(?m)^\| ([^|]*) \|", rows) for one in re.findall(r"`([^`]+)`", row)]
    assert len(lines) > 10
    for line in lines:
        assert re.search(rf'\(\s*"{re.escape(line)}"', source), line
    limits = Limits()
    for said in (f"{limits.loop_lag:g} s", f"heard of for {limits.watch_age:g} s", f"Lease for {limits.lease_age:g} s"):
        assert said in sections()["operator"]
