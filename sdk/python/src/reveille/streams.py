"""Server-sent events that go on behind the last id after a connection is lost."""

import codecs
import json
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from reveille.errors import ApiError, Unreachable, retry_after
from reveille.retry import RETRIED_STATUSES, RetryPolicy

_READ_TIMEOUT = 60.0
"""Seconds of silence after which a connection counts as lost: the service says something every 15."""
_SETTLED = 5.0
"""Seconds after which a connection counts as good, and the next one is tried soon."""


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """One event. `id` is empty where it is told only while it happens."""

    name: str
    data: str
    id: str = ""

    def json(self) -> Any:
        """The data, which is JSON."""
        return json.loads(self.data)


class EventStream(Iterator[ServerEvent]):
    """The events of a stream over as many connections as it takes.

    `last_event_id` is the place of the stream. A program that stores `event.id` once it has dealt with an event, and
    passes it as `last_event_id` later, misses none that is still kept.
    """

    def __init__(
        self,
        http: httpx.Client,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        last_event_id: str = "",
        end: str | None = None,
        patience: float = 60.0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`end` is the name of the last event; after it nothing is asked. `patience` is how many seconds without a
        connection are borne."""
        self.last_event_id = last_event_id
        self._http, self._path, self._params, self._end = http, path, dict(params or {}), end
        self._patience, self._sleep = patience, sleep
        self._events = self._follow()

    def __iter__(self) -> "EventStream":
        return self

    def __next__(self) -> ServerEvent:
        return next(self._events)

    def __enter__(self) -> "EventStream":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection."""
        self._events.close()

    def _follow(self) -> Generator[ServerEvent, None, None]:
        policy, failures, has_begun = RetryPolicy(longest_backoff=5.0), 0, False
        connected = time.monotonic()
        while True:
            hint: float | None = None
            lost: Exception = Unreachable(f"the stream {self._path} ended early")
            is_open = False
            begun = time.monotonic()
            try:
                with self._connect() as response:
                    if response.status_code == 200:
                        is_open = True
                        for event in self._read(response):
                            # each connection begins with it
                            if event.name == "session" and has_begun:
                                continue
                            has_begun, failures = True, 0
                            yield event
                            if event.name == self._end:
                                return
                    else:
                        response.read()
                        hint, lost = retry_after(response.headers), ApiError.of(response)
                        if response.status_code not in RETRIED_STATUSES:
                            raise lost
            except httpx.TransportError as error:
                lost = Unreachable(f"the stream {self._path} was lost: {error or type(error).__name__}")
            if is_open:
                connected = time.monotonic()
                if connected - begun > _SETTLED:
                    failures = 0
            failures += 1
            wait = max(hint or 0.0, policy.backoff(failures))
            if time.monotonic() + wait - connected > self._patience:
                raise lost
            self._sleep(wait)

    def _connect(self) -> Any:
        headers = {"accept": "text/event-stream", "cache-control": "no-store"}
        if self.last_event_id:
            headers["last-event-id"] = self.last_event_id
        timeout = httpx.Timeout(30.0, read=_READ_TIMEOUT)
        return self._http.stream("GET", self._path, params=self._params, headers=headers, timeout=timeout)

    def _read(self, response: httpx.Response) -> Iterator[ServerEvent]:
        for event in parse(response.iter_bytes()):
            self.last_event_id = event.id or self.last_event_id
            # one without data only moves the place on
            if event.data:
                yield event


def parse(parts: Iterable[bytes]) -> Iterator[ServerEvent]:
    """The events in a body that comes in parts. `id` is that of the event itself; one without data may have an id."""
    name, data, event_id = "", list[str](), ""
    for line in _lines(parts):
        if line:
            field, _, value = line.partition(":")
            value = value.removeprefix(" ")
            match field:
                case "event":
                    name = value
                case "data":
                    data.append(value)
                case "id" if "\0" not in value:
                    event_id = value
        else:
            if data or event_id:
                yield ServerEvent(name or "message", "\n".join(data), event_id)
            name, data, event_id = "", [], ""


def _lines(parts: Iterable[bytes]) -> Iterator[str]:
    """Lines that end in LF, CR or CRLF; what comes behind the last end is not whole, and dropped."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")("replace")
    rest = list[str]()
    is_after_cr = False
    for part in parts:
        text = decoder.decode(part)
        if is_after_cr and text:
            text, is_after_cr = text.removeprefix("\n"), False
        is_after_cr = is_after_cr or text.endswith("\r")
        *whole, last = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        for line in whole:
            yield "".join(rest) + line
            rest = []
        rest.append(last)
