"""What CEL cannot know is refused in the same words by `hisparse plan -f` and by the operator as Accepted=False."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from bad_input import BAD_INPUT, BadInput

from hisparse.acceptance import accept
from hisparse.errors import SpecError
from hisparse.model import facts_for
from hisparse.spec import parse_manifest
from hisparse.target import target_of
from hisparse_operator.decide.reconcile import reconcile
from hisparse_operator.settings import OperatorSettings
from hisparse_operator.world import World

NOW = datetime(2026, 11, 29, tzinfo=UTC)
CASES = [pytest.param(case, id=case.id) for case in BAD_INPUT if case.judged_by == "planner"]


def refusals(case: BadInput) -> list[SpecError]:
    spec = parse_manifest(case.manifest)
    try:
        return list(accept(facts_for(spec.model), target_of(spec)))
    except SpecError as error:
        return [error]


def accepted(case: BadInput) -> dict[str, Any]:
    """The operator's condition, without a cluster."""
    meta = {"namespace": "team", "uid": "0f0f", "generation": 1, "resourceVersion": "1"}
    manifest = case.manifest | {"metadata": case.manifest["metadata"] | meta}
    outcome = reconcile(World(inference=manifest, nodes=()), NOW, OperatorSettings())
    assert not outcome.apply, "nothing is made for a spec that is refused"
    conditions = (outcome.status or {})["conditions"]
    found: dict[str, Any] = next(one for one in conditions if one["type"] == "Accepted")
    return found


@pytest.mark.parametrize("case", CASES)
def test_the_planner_names_field_value_and_next_step(case: BadInput) -> None:
    (error,) = refusals(case)
    assert error.field == case.field
    for word in case.must_mention:
        assert word in error.message


@pytest.mark.parametrize("case", CASES)
def test_the_operator_says_the_same(case: BadInput) -> None:
    (error,) = refusals(case)
    condition = accepted(case)
    assert condition["status"] == "False"
    assert condition["message"] == f"{error.field}: {error.message}"


@pytest.mark.parametrize("case", CASES)
def test_the_command_says_the_same_and_exits_with_2(case: BadInput, tmp_path: Path) -> None:
    (error,) = refusals(case)
    manifest = tmp_path / "bad.yaml"
    manifest.write_text(yaml.safe_dump(case.manifest))
    words = [sys.executable, "-m", "hisparse_toolkit", "plan", "--no-hub", "-f", str(manifest)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stdout
    assert f"{error.field}: {error.message}" in done.stderr
    machine = subprocess.run([*words, "--json"], capture_output=True, text=True, check=False)
    assert machine.returncode == 2
    assert error.message in json.dumps(json.loads(machine.stdout), ensure_ascii=False)
