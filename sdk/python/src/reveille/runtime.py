"""A runtime for tasks of the executor `webhook`: it takes fires, answers at once, and completes runs later."""

import json
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

import httpx

from reveille.errors import ApiError, Conflict, ReveilleError, Unreachable
from reveille.retry import RetryPolicy, RetryTransport
from reveille.webhooks import TOLERANCE_SECONDS, InvalidSignature, Message, verify

_log = logging.getLogger("reveille.runtime")

_BODY_BYTES = 16 * 1024 * 1024
"""The largest request that is read."""
_REMEMBERED = 10_000
"""Fires that are known again when they come a second time, the newest."""
_MESSAGE_LENGTH = 2_000
"""The longest message of a failure, in characters."""


class _Later:
    def __repr__(self) -> str:
        return "LATER"


LATER: Final = _Later()
"""Returned by a handler that completes the run by itself, with `fire.complete` or `fire.fail`."""


class Failed(ReveilleError):
    """Raised by a handler: the run fails with this message and code."""

    def __init__(self, message: str, code: str = "runtime_failed") -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Answer:
    """What is to be answered to a request."""

    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, repr=False)
class Fire:
    """One run that is handed to the runtime."""

    run_id: str
    task_id: str
    task_name: str
    tenant_id: str
    instruction: str | None
    attempt: int
    expires_at: datetime
    """Until then the run waits to be completed; it can't be made longer."""
    data: dict[str, Any]
    """All that was sent, without the token: `run`, `task`, `cause`, `input`, `missed` among it."""
    _report: Callable[[dict[str, Any]], None]

    def __repr__(self) -> str:
        return f"Fire(run_id={self.run_id!r}, task_name={self.task_name!r}, attempt={self.attempt})"

    @property
    def input(self) -> Any:
        """The input of a run by hand."""
        return self.data.get("input")

    @property
    def cause(self) -> Any:
        """The event or the value that has fired the task."""
        return self.data.get("cause")

    def complete(self, output: Any = None) -> None:
        """The run has succeeded. An output that is no text is stored as JSON. Raises `Conflict` where the run does not
        wait any more, and `Unreachable` where the service can't be reached."""
        self._report({"state": "succeeded", "output": output})

    def fail(self, message: str, code: str = "runtime_failed") -> None:
        """The run has failed. Raises as `complete`."""
        error = {"code": code[:100], "message": message[:_MESSAGE_LENGTH]}
        self._report({"state": "failed", "error": error})


Handler = Callable[[Fire], Any]


class Runtime:
    """Takes fires that one of the secrets has signed, and gives each to the handler, once, on a thread of its own.

    What the handler returns is the run's output, and what it raises its error. A fire that was answered with 202 and
    lost with this process is not sent again: its run expires.
    """

    def __init__(
        self,
        secrets: str | Iterable[str],
        *,
        workers: int = 8,
        queue: int = 100,
        tolerance: float = TOLERANCE_SECONDS,
        transport: httpx.BaseTransport | None = None,
        policy: RetryPolicy | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """At most `workers` handlers run at once and `queue` more fires wait for them; others are answered 503, and
        the service sends them again. Times are in seconds."""
        self._secrets = secrets if isinstance(secrets, str) else list(secrets)
        self._tolerance = tolerance
        self._handler: Handler | None = None
        self._pool = ThreadPoolExecutor(workers, "reveille-fire")
        self._room = threading.BoundedSemaphore(workers + queue)
        self._lock = threading.Lock()
        # by run: its report, once there is one
        self._seen: OrderedDict[str, dict[str, Any] | None] = OrderedDict()
        policy = policy or RetryPolicy(attempts=10, longest_backoff=30.0, longest_wait=120.0)
        self._http = httpx.Client(transport=RetryTransport(transport, policy, sleep), timeout=30.0)

    def on_fire(self, handler: Handler) -> Handler:
        """Decorates the function that takes a `Fire`."""
        self._handler = handler
        return handler

    def receive(self, headers: Mapping[str, str], body: bytes) -> Answer:
        """Takes a request of whatever server: send back what this returns."""
        if self._handler is None:
            raise RuntimeError("no function is decorated with @runtime.on_fire")
        try:
            message = verify(self._secrets, headers, body, tolerance=self._tolerance)
        except InvalidSignature as error:
            _log.warning("a request was refused: %s", error)
            return Answer(401)
        if message.type != "run.started":
            return Answer(400, b"only run.started is taken here")
        try:
            fire = self._fire(message)
        except (KeyError, TypeError, ValueError) as error:
            _log.error("a fire could not be read: %r", error)
            return Answer(400, b"the fire can not be read")
        return self._accept(fire, self._handler)

    def serve(self, host: str = "127.0.0.1", port: int = 8080) -> None:
        """Serves until the process ends; put a proxy with TLS in front of it."""
        with self.server(host, port) as server:
            server.serve_forever()

    def server(self, host: str = "127.0.0.1", port: int = 0) -> ThreadingHTTPServer:
        """A server that is not serving yet; port 0 is a free one."""
        runtime = self

        class Requests(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = 30

            def do_POST(self) -> None:
                written = self.headers.get("content-length", "")
                if not (written.isascii() and written.isdigit()):
                    self.answer(Answer(411), is_last=True)
                elif len(written) > 10 or int(written) > _BODY_BYTES:
                    self.answer(Answer(413), is_last=True)
                else:
                    body = self.rfile.read(int(written))
                    self.answer(runtime.receive(dict(self.headers.items()), body))

            def answer(self, answer: Answer, is_last: bool = False) -> None:
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(answer.body)))
                if is_last:
                    # the body that was not read stands in the way
                    self.send_header("connection", "close")
                self.end_headers()
                self.wfile.write(answer.body)

            def log_message(self, format: str, *args: Any) -> None:
                _log.debug(format, *args)

        return ThreadingHTTPServer((host, port), Requests)

    def close(self) -> None:
        """Returns once the fires that were taken are dealt with."""
        self._pool.shutdown()
        self._http.close()

    def _accept(self, fire: Fire, handler: Handler) -> Answer:
        with self._lock:
            if fire.run_id in self._seen:
                report = self._seen[fire.run_id]
                # it comes again because the first answer was lost: a report may have come too early to be taken
                return Answer(202) if report is None else _answered(report)
            if not self._room.acquire(blocking=False):
                return Answer(503, headers={"retry-after": "5"})
            self._seen[fire.run_id] = None
            while len(self._seen) > _REMEMBERED:
                self._seen.popitem(last=False)
        self._pool.submit(self._handle, fire, handler)
        return Answer(202)

    def _handle(self, fire: Fire, handler: Handler) -> None:
        try:
            self._end(fire, handler)
        except Conflict as error:
            _log.warning("run %s does not wait for its completion: %s", fire.run_id, error)
        except Exception:
            _log.exception("run %s could not be completed", fire.run_id)
        finally:
            self._room.release()

    def _end(self, fire: Fire, handler: Handler) -> None:
        try:
            output = handler(fire)
            if output is LATER:
                return
            json.dumps(output)
        except Failed as failed:
            fire.fail(str(failed), failed.code)
        except Exception as error:
            _log.exception("the handler failed in run %s", fire.run_id)
            fire.fail(f"{type(error).__name__}: {error}", "handler_failed")
        else:
            _complete(fire, output)

    def _fire(self, message: Message) -> Fire:
        data = dict(message.data)
        completion, run, task = data.pop("completion"), data["run"], data["task"]
        run_id, url, token = str(run["id"]), str(completion["url"]), str(completion["token"])
        return Fire(
            run_id=run_id,
            task_id=str(task["id"]),
            task_name=str(task["name"]),
            tenant_id=str(run["tenant_id"]),
            instruction=data.get("instruction"),
            attempt=int(run["attempt"]),
            expires_at=datetime.fromisoformat(completion["expires_at"]),
            data=data,
            _report=lambda report: self._complete(run_id, url, token, report),
        )

    def _complete(self, run_id: str, url: str, token: str, report: dict[str, Any]) -> None:
        with self._lock:
            if run_id in self._seen:
                self._seen[run_id] = report
        try:
            response = self._http.post(url, json=report, headers={"authorization": f"Bearer {token}"})
        except httpx.TransportError as error:
            raise Unreachable(f"run {run_id} could not be completed: {error}") from error
        if not response.is_success:
            raise ApiError.of(response)


def _complete(fire: Fire, output: Any) -> None:
    """Completes the run; an output that the service does not take fails it, so that it waits no longer."""
    try:
        fire.complete(output)
    except ApiError as error:
        if error.status not in (413, 422):
            raise
        fire.fail(f"the output was refused: {error}", "output_refused")


def _answered(report: dict[str, Any]) -> Answer:
    """A report as the answer itself, which ends the run."""
    return Answer(200, json.dumps(report).encode(), {"content-type": "application/json"})
