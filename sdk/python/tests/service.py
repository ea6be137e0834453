"""A server on this machine that answers as it is told, and remembers what it was asked."""

import json
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Asked:
    """One request."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Told:
    """One answer. `breaks`: the connection is reset behind what was sent."""

    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    breaks: bool = False


def stream(text: str, breaks: bool = False) -> Told:
    """An answer that is a stream of server-sent events."""
    return Told(200, text.encode(), {"content-type": "text/event-stream"}, breaks)


Script = Callable[[Asked], Told]


class Service:
    """Answers each request with the next of the answers, or with what the function says."""

    def __init__(self, script: list[Told] | Script) -> None:
        self.asked: list[Asked] = []
        left = list(script) if isinstance(script, list) else None
        service = self

        class Requests(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", "0")))
                asked = Asked(self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, body)
                service.asked.append(asked)
                told = left.pop(0) if left is not None else script(asked)  # type: ignore[operator]
                content = told.body if isinstance(told.body, bytes) else json.dumps(told.body).encode()
                if told.status == 0:
                    self.reset()
                    return
                self.send_response(told.status)
                for name, value in told.headers.items():
                    self.send_header(name, value)
                if told.breaks:
                    # more is promised than comes
                    self.send_header("content-length", str(len(content) + 1))
                else:
                    self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)
                self.wfile.flush()
                self.close_connection = self.close_connection or told.breaks

            def reset(self) -> None:
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.connection.close()
                self.close_connection = True

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer

            def log_message(self, format: str, *args: Any) -> None:
                pass

            def finish(self) -> None:
                try:
                    super().finish()
                except OSError:
                    pass

        class Quiet(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: Any, client_address: Any) -> None:
                pass

        self._server = Quiet(("127.0.0.1", 0), Requests)
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> "Service":
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


BROKEN = Told(status=0)
"""The connection is reset without an answer."""
