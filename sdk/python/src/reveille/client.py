"""A client of the HTTP API. Bodies and answers are JSON as the reference at `/docs` has them."""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import quote

import httpx

from reveille.errors import ApiError, Unreachable
from reveille.retry import RetryPolicy, RetryTransport
from reveille.streams import EventStream

FINAL_STATES = frozenset({"succeeded", "failed", "cancelled", "expired", "skipped"})
"""States that a run ends in."""


class Client:
    """Requests with a token. Safe to use from several threads; close it, or use it in a `with`."""

    def __init__(
        self,
        base_url: str | None = None,
        token: str | None = None,
        *,
        timeout: float = 60.0,
        policy: RetryPolicy | None = None,
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Where the service is, and a token; absent: `REVEILLE_URL` and `REVEILLE_TOKEN`. Times are in seconds."""
        base_url = base_url or os.environ.get("REVEILLE_URL") or "http://127.0.0.1:7700"
        token = token or os.environ.get("REVEILLE_TOKEN")
        if not token:
            raise ValueError("a token is needed: pass it, or set REVEILLE_TOKEN")
        headers = {"authorization": f"Bearer {token}", "user-agent": "reveille-python/0.1"}
        inner = transport or httpx.HTTPTransport()
        self._sleep = sleep
        retrying = RetryTransport(inner, policy, sleep)
        self._http = httpx.Client(base_url=base_url, headers=headers, timeout=timeout, transport=retrying)
        # streams count their failures themselves
        self._streams = httpx.Client(base_url=base_url, headers=headers, transport=inner)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections."""
        self._streams.close()
        self._http.close()

    def request(
        self,
        method: str,
        path: str,
        *,
        json: Any = None,
        params: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
    ) -> Any:
        """The answer to one request; `None` where it has no body. A POST has a key of its own, the same at each
        repetition; pass one that is stored to repeat it after a crash of this program as well."""
        headers = {"idempotency-key": idempotency_key} if idempotency_key else {}
        sent = {name: value for name, value in (params or {}).items() if value is not None}
        try:
            response = self._http.request(method, path, json=json, params=sent, headers=headers)
        except httpx.TransportError as error:
            raise Unreachable(f"{method} {path}: {error or type(error).__name__}") from error
        if not response.is_success:
            raise ApiError.of(response)
        return response.json() if response.content else None

    def get(self, path: str, **params: Any) -> Any:
        """Reads; keywords are the query, those that are `None` are left out."""
        return self.request("GET", path, params=params)

    def post(self, path: str, json: Any = None, *, idempotency_key: str | None = None) -> Any:
        """Posts; repeated where that is safe."""
        return self.request("POST", path, json=json, idempotency_key=idempotency_key)

    def put(self, path: str, json: Any) -> Any:
        """Puts."""
        return self.request("PUT", path, json=json)

    def patch(self, path: str, json: Any) -> Any:
        """Changes fields."""
        return self.request("PATCH", path, json=json)

    def delete(self, path: str) -> Any:
        """Deletes."""
        return self.request("DELETE", path)

    def items(self, path: str, **params: Any) -> Iterator[dict[str, Any]]:
        """All items of a list, page by page as they are asked for. `limit` is the size of a page."""
        cursor = params.pop("cursor", None)
        while True:
            page = self.get(path, **params, cursor=cursor)
            yield from page["items"]
            # a page may be empty and still not the last
            before, cursor = cursor, page["next_cursor"]
            if cursor is None or cursor == before:
                return

    def publish(self, *events: dict[str, Any], idempotency_key: str | None = None) -> list[str]:
        """Publishes events, all of them or none; their ids."""
        answer = self.post("/v1/events", list(events), idempotency_key=idempotency_key)
        return [str(one) for one in answer["ids"]]

    def follow_run(self, run_id: str, last_event_id: str = "", patience: float = 60.0) -> EventStream:
        """What has happened in a run and what happens, up to `execution_end`."""
        path = f"/v1/runs/{quote(run_id, safe='')}/stream"
        return self.stream(path, last_event_id=last_event_id, end="execution_end", patience=patience)

    def follow_events(
        self,
        *,
        tenant_id: str | None = None,
        source: str | None = None,
        type: str | None = None,
        last_event_id: str = "",
        patience: float = 60.0,
    ) -> EventStream:
        """Events of the bus: those behind `last_event_id`, or those that come from now on.

        Without an id, what comes between a connection that is lost before its first event and the next is missed.
        """
        params = {"tenant_id": tenant_id, "source": source, "type": type}
        return self.stream("/v1/events/stream", params=params, last_event_id=last_event_id, patience=patience)

    def stream(
        self,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        last_event_id: str = "",
        end: str | None = None,
        patience: float = 60.0,
    ) -> EventStream:
        """Any stream of the API that is read with GET, such as `/v1/live`."""
        sent = {name: value for name, value in (params or {}).items() if value is not None}
        return EventStream(
            self._streams,
            path,
            params=sent,
            last_event_id=last_event_id,
            end=end,
            patience=patience,
            sleep=self._sleep,
        )
