"""A few JSON requests to the API server with the administrator's certificate: cheaper than a kubectl each."""

import http.client
import json
import ssl
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hisparse_testenv.pki import Pair

MERGE_PATCH = "application/merge-patch+json"
TIMEOUT_S = 30


class ApiError(RuntimeError):
    """The API server refused a request; `status` is the HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


@dataclass(frozen=True)
class Api:
    """One user at one API server."""

    server: str
    authority: Pair
    user: Pair

    def request(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, content: str = "application/json"
    ) -> dict[str, Any]:
        """Send one request and return the JSON object that comes back; raises ApiError unless it is a 2xx."""
        address = urllib.parse.urlsplit(self.server)
        context = ssl.create_default_context(cafile=str(self.authority.cert))
        context.load_cert_chain(self.user.cert, self.user.key)
        connection = http.client.HTTPSConnection(
            address.hostname or "", address.port, timeout=TIMEOUT_S, context=context
        )
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data, {"Content-Type": content, "Accept": "application/json"})
            response = connection.getresponse()
            text = response.read().decode()
        finally:
            connection.close()
        answer: dict[str, Any] = json.loads(text) if text.startswith("{") else {"message": text}
        if not http.HTTPStatus.OK <= response.status < http.HTTPStatus.MULTIPLE_CHOICES:
            raise ApiError(response.status, f"{method} {path}: {answer.get('message', text)}")
        return answer

    def get(self, path: str) -> dict[str, Any] | None:
        """An object or list, None if there is no such thing."""
        try:
            return self.request("GET", path)
        except ApiError as error:
            if error.status == http.HTTPStatus.NOT_FOUND:
                return None
            raise
