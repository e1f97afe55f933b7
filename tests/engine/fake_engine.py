"""A small real HTTP server that plays vLLM: its port is closed until ready, and files in a folder steer it.

FOLDER/ready      opens the port                    FOLDER/health    status of /health (200)
FOLDER/metrics    body of /metrics in place of ours FOLDER/finish    lets running requests end
FOLDER/exit       ends the server with this code    FOLDER/signals   gets a line per signal seen
FOLDER/workers    gets a line per worker pid        FOLDER/slow      /health answers only while it is absent
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

# ends on SIGTERM, as vLLM's engine core does; "deaf" ones have to be killed
WORKER = (
    "import os, signal, sys, time\n"
    "if sys.argv[2] == 'deaf': signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "open(sys.argv[1], 'a').write(f'{os.getpid()}\\n')\n"
    "while True: time.sleep(1)\n"
)
# what a daemon does: the middle process ends at once, and the last one becomes somebody else's child
ORPHAN = (
    "import os, sys, time\nif os.fork(): os._exit(0)\nopen(sys.argv[1], 'w').write(f'{os.getpid()} {os.getppid()}')\n"
)


class Engine(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, port: int, folder: Path, name: str) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.folder = folder
        self.name = name
        self.running = 0
        self.lock = threading.Lock()


class Handler(BaseHTTPRequestHandler):
    server: Engine

    def do_GET(self) -> None:
        folder = self.server.folder
        if self.path == "/health":
            while (folder / "slow").exists():
                time.sleep(0.02)
            self._reply(int(_read(folder / "health", "200")), "")
        elif self.path == "/v1/models":
            key = os.environ.get("VLLM_API_KEY")
            if key and self.headers["Authorization"] != f"Bearer {key}":
                self._reply(401, '{"error": "Unauthorized"}')
            else:
                self._reply(200, json.dumps({"object": "list", "data": [{"id": self.server.name}]}))
        elif self.path == "/metrics":
            ours = (
                "# TYPE vllm:num_requests_running gauge\n"
                f'vllm:num_requests_running{{engine="0",model_name="m"}} {self.server.running}.0\n'
                'vllm:num_requests_waiting{engine="0",model_name="m"} 0.0\n'
            )
            self._reply(200, _read(folder / "metrics", ours))
        else:
            self._request()

    def _request(self) -> None:
        """One request in flight: a stream that ends when FOLDER/finish appears."""
        with self.server.lock:
            self.server.running += 1
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"first ")
        self.wfile.flush()
        while not (self.server.folder / "finish").exists():
            time.sleep(0.02)
        self.wfile.write(b"last")
        with self.server.lock:
            self.server.running -= 1

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        pass

    def _reply(self, status: int, body: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())


def _read(path: Path, default: str) -> str:
    return path.read_text() if path.exists() else default


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--name", default="tiny")
    parser.add_argument("--workers", nargs="*", default=[], choices=["polite", "deaf"])
    parser.add_argument("--orphan", action="store_true")
    parser.add_argument("--api-key")
    options = parser.parse_args()
    folder: Path = options.folder
    if options.api_key:
        os.environ["VLLM_API_KEY"] = options.api_key
    stopped = threading.Event()

    def on_signal(number: int, _frame: object) -> None:
        with (folder / "signals").open("a") as file:
            file.write(f"{signal.Signals(number).name}\n")
        stopped.set()

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    (folder / "pid").write_text(str(os.getpid()))
    sys.stdout.write("engine: a line that ends in CR LF\r\n")
    sys.stdout.flush()
    workers = [
        subprocess.Popen([sys.executable, "-c", WORKER, str(folder / "workers"), how]) for how in options.workers
    ]
    if options.orphan:
        subprocess.run([sys.executable, "-c", ORPHAN, str(folder / "orphan")], check=True)
    while not (folder / "ready").exists() and not stopped.is_set() and not (folder / "exit").exists():
        time.sleep(0.02)
    server = None
    if (folder / "ready").exists():
        server = Engine(options.port, folder, options.name)
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    while not stopped.is_set() and not (folder / "exit").exists():
        time.sleep(0.02)
    code = int(_read(folder / "exit", "0"))
    if server:
        with (folder / "signals").open("a") as file:
            file.write(f"stopped with {server.running} running\n")
        server.shutdown()
        server.server_close()
    for worker in workers:
        worker.kill()
        worker.wait()
    sys.exit(code)


if __name__ == "__main__":
    main()
