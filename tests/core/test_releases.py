"""A version's text and the rules of its release: known, newer, older, and no version at all."""

from __future__ import annotations

import pytest

from hisparse.accounting import accounting
from hisparse.dialect import DIALECTS, PINNED_VERSION, dialect, release
from hisparse.errors import SpecError

NO_VERSION = ["banana", "", "0", "0.x", "v", "33", "0.33banana", "version 0.33", "latest", "0.33 or so"]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0.33", (0, 33, 0)),
        ("v0.33.1", (0, 33, 1)),
        ("0.11.2", (0, 11, 2)),
        ("0.33.0rc1.dev7+g1a2b3c", (0, 33, 0)),
        ("0.33rc1", (0, 33, 0)),
        (" 1.0 ", (1, 0, 0)),
    ],
)
def test_a_version_is_read(text: str, number: tuple[int, int, int]) -> None:
    assert release(text) == number


@pytest.mark.parametrize("text", NO_VERSION)
def test_what_names_no_release_is_refused(text: str) -> None:
    for rules in (accounting, dialect):
        with pytest.raises(SpecError, match="names no vLLM release") as caught:
            rules(text)
        assert caught.value.field == "spec.engine.version"


@pytest.mark.parametrize(
    ("text", "version"),
    [("0.30", "0.30"), ("0.31.1", "0.30"), ("v0.32.0", "0.32"), ("0.33.4", "0.33"), ("9.9", "0.33")],
)
def test_the_newest_dialect_that_is_not_younger(text: str, version: str) -> None:
    assert dialect(text).version == version


@pytest.mark.parametrize("text", ["0.29", "v0.19", "0.29.5"])
def test_no_dialect_before_hisparse(text: str) -> None:
    with pytest.raises(SpecError, match=f"{text} has no HiSparse; the first release with it is 0.30"):
        dialect(text)


def test_rules_are_those_of_the_newest_release_that_is_not_younger() -> None:
    assert accounting("v0.19") == accounting("0.19.1") != accounting("0.20")
    assert accounting("0.29") == accounting("0.30") == accounting("0.31.2") != accounting("0.28.9")
    assert accounting("9.9") == accounting("1.0") == accounting(PINNED_VERSION)
    assert accounting("0.20.0") != accounting("0.20.1") == accounting("0.25")
    assert accounting("0.7.3").padded_latent_bytes == 256
    assert accounting(DIALECTS[-1].version).delta_net_checkpoints
