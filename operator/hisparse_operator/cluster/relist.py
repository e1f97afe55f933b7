"""A whole list, taken into the cache page by page: what watches have missed, without all of it in memory."""

from __future__ import annotations

from collections.abc import Callable

from hisparse_operator.cluster.cache import Cache, Change
from hisparse_operator.cluster.kube import Api
from hisparse_operator.kinds import Kind


async def relist(
    api: Api,
    cache: Cache,
    kind: Kind,
    namespace: str | None,
    on_change: Callable[[Change], None],
    *,
    on_page: Callable[[], None] = lambda: None,
) -> str:
    """Bring the cache up to a whole list of a kind in a namespace (None: in all); the list's resource version.

    Raises what a request raises. Pages taken in until then are news like those of a watch; only the end of the list
    says what is gone.
    """
    uids: set[str] = set()
    version = ""
    async for items, at in api.pages(kind, namespace):
        on_page()
        version = at
        uids |= {item["metadata"]["uid"] for item in items}
        for item in items:
            if (change := cache.put(kind, item, listed=True)) is not None:
                on_change(change)
            del item
        del items  # the next page need not be in memory beside it
    for change in cache.retain(kind, namespace, uids, version):
        on_change(change)
    return version
