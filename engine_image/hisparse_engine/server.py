"""The launcher's own HTTP server: probes and drain."""

import hmac
import socket
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from hisparse_engine.readiness import OK, UNAVAILABLE
from hisparse_engine.watch import Watch

NOT_FOUND = 404
FORBIDDEN = 403
DRAIN_KEY_HEADER = "X-Hisparse-Drain-Key"


class Handler(BaseHTTPRequestHandler):
    """One probe or one drain, answered with one line of text."""

    server_version = "hisparse-launch"
    sys_version = ""
    # a client that connects and says nothing must not hold its thread for ever
    timeout = 10.0
    server: "Server"

    def do_GET(self) -> None:
        """Answer one request."""
        watch = self.server.watch
        probes = {"/readyz": watch.ready, "/livez": watch.alive, "/startedz": watch.started}
        path = self.path.partition("?")[0]
        if path == "/drain" and not self._may_drain():
            self._reply(FORBIDDEN, f"the drain needs the header {DRAIN_KEY_HEADER} with launcher.drainKey of the plan")
        elif path == "/drain":
            watch.begin_drain()
            self._reply(OK, watch.wait_drained())
        elif path in probes:
            answer = probes[path]()
            self._reply(OK if answer.ok else UNAVAILABLE, f"{answer.reason}: {answer.line}")
        else:
            self._reply(NOT_FOUND, "there are /readyz, /livez, /startedz and /drain")

    def _may_drain(self) -> bool:
        """A drain is for good, and an engine that fetches URLs for its users can be made to ask for this one."""
        given = self.headers.get(DRAIN_KEY_HEADER, "")
        return hmac.compare_digest(given.encode(), self.server.drain_key.encode()) or not self.server.drain_key

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Say nothing: probes come every few seconds."""

    def _reply(self, status: int, line: str) -> None:
        body = f"{line}\n".encode()
        # the kubelet may have hung up, most likely at the end of a long drain
        with suppress(ConnectionError):
            self.send_response(status)
            self.send_header("Content-Type", "text/plain; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)


class Server(ThreadingHTTPServer):
    """Listens on all addresses, IPv6 and IPv4 where the machine has both."""

    daemon_threads = True

    def __init__(self, port: int, watch: Watch, family: socket.AddressFamily, drain_key: str) -> None:
        self.watch = watch
        self.drain_key = drain_key
        self.address_family = family
        super().__init__(("", port), Handler)

    def server_bind(self) -> None:
        """Bind both families with one socket."""
        if self.address_family is socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        # HTTPServer.server_bind would look our own name up in DNS, which may take seconds in a pod
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_name, self.server_port = "hisparse-launch", self.socket.getsockname()[1]

    def serve(self) -> None:
        """Answer in a thread until `close`."""
        self._thread = threading.Thread(target=self.serve_forever, args=(0.1,), name="server", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop answering and give the port back."""
        self.shutdown()
        self._thread.join()
        self.server_close()


def listen(port: int, watch: Watch, drain_key: str = "") -> Server:
    """Open the port; raises OSError when it is taken."""
    if socket.has_dualstack_ipv6():
        with suppress(OSError):
            return Server(port, watch, socket.AF_INET6, drain_key)
    return Server(port, watch, socket.AF_INET, drain_key)
