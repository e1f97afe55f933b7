"""What the examples ask for can be asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
import yaml

from hisparse.nodes.acceptance import accepted
from hisparse.nodes.policy import KIND as POLICY
from hisparse.spec import parse_spec

EXAMPLES: Final = sorted((Path(__file__).parents[2] / "examples").rglob("*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_is_accepted(path: Path) -> None:
    documents = [one for one in yaml.safe_load_all(path.read_text()) if one]
    assert documents
    for document in documents:
        if document["kind"] == "HiSparseInference":
            parse_spec(document["spec"])
        elif document["kind"] == POLICY:
            assert accepted(document["spec"]).dry_run, "an example does nothing to a host by being applied"
