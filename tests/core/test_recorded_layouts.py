"""The layout against what vLLM's own planning code answered, to the byte and the block (tests/data/vllm/).

One setting for each family, generation, dtype and special rule; tests/engine/record_layouts.py has the list.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import pytest
from recorded_layouts import VERSIONS, recorded, setting_of

RECORDS = [
    pytest.param(record, version, id=f"{record['rule']}-{version}")
    for version in VERSIONS
    for record in recorded(version)
]


@pytest.mark.parametrize(("record", "version"), RECORDS)
def test_vllm_answered_the_same(record: Mapping[str, Any], version: str) -> None:
    layout = setting_of(record).layout(version)
    assert sorted(
        [one.reach.value, one.layers, 0 if one.reach.value == "state" else one.block_tokens, one.bytes]
        for one in layout.groups
    ) == list(record["groups"])
    assert layout.block_bytes == record["blockBytes"]
    for request in record["requests"]:
        tokens = request["tokens"]
        assert layout.request_bytes(tokens) == request["needed"]
        for pool in request["pools"]:
            size = pool["bytes"]
            assert layout.holds(size, tokens) is pool["starts"]
            if pool["starts"]:
                blocks = layout.blocks_in(size)
                assert (blocks, layout.concurrency(blocks, tokens)) == (pool["blocks"], Fraction(pool["concurrency"]))
            else:
                assert layout.longest(size, tokens) == pool["longest"]


@pytest.mark.parametrize("version", VERSIONS)
def test_every_pool_has_its_edge(version: str) -> None:
    """Among the pools of every request are one that just starts and one that has a byte too little."""
    for record in recorded(version):
        for request in record["requests"]:
            starting = {pool["bytes"] for pool in request["pools"] if pool["starts"]}
            assert any(not pool["starts"] and pool["bytes"] + 1 in starting for pool in request["pools"])
