"""Equal parts kept once: what comes out equals what went in, to the type."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hisparse_operator.cluster.pool import Pool

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=12,
)


@given(st.lists(JSON, max_size=12), st.integers(1, 6))
def test_values_come_out_as_they_went_in_whatever_was_in_it_before(values: list[Any], room: int) -> None:
    pool = Pool(parts=room, texts=room)
    # 1, 1.0 and True are equal and not the same
    assert repr([pool.one(value) for value in values]) == repr(values)
    assert len(pool) <= room


def test_equal_parts_are_the_same_object() -> None:
    pool = Pool()
    one = pool.one({"a": {"env": [{"name": "x", "value": "y"}]}, "replicas": 1})
    other = pool.one({"b": {"env": [{"name": "x", "value": "y"}]}, "replicas": 2})
    assert one["a"] is other["b"]
    assert len(pool) == 5
