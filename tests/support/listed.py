"""A whole list in one piece, for tests; the operator takes lists in page by page."""

from typing import Any

from hisparse_operator.cluster.kube import Api
from hisparse_operator.kinds import Kind


async def listed(api: Api, kind: Kind, namespace: str | None = None) -> list[dict[str, Any]]:
    """All objects of a kind that concern us."""
    return [item async for page, _ in api.pages(kind, namespace) for item in page]
