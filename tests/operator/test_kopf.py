"""What kopf does with an event besides telling us."""

from typing import Any

import kopf

from hisparse_operator.cluster import watch
from hisparse_operator.kinds import CHILDREN


class Uncopied:
    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        raise AssertionError("a whole object is copied at each event")


def test_no_object_is_copied_or_compared() -> None:
    storage = watch.settings(CHILDREN).persistence.diffbase_storage
    raw: Any = {"metadata": {"name": "a", "labels": {"a": "b"}}, "spec": Uncopied()}
    body = kopf.Body(raw)
    assert storage.build(body=body) == {}
    assert storage.fetch(body=body) is None
