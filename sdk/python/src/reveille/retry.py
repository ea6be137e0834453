"""Requests that are sent again where that is safe, as a transport of httpx: generated clients can use it, too."""

import random
import re
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass

import httpx

from reveille.errors import retry_after

RETRIED_STATUSES = frozenset({408, 429, 502, 503, 504})
"""Statuses with which a request may be sent again."""

_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE"})
# Operations that act and take no Idempotency-Key.
_UNKEYED = re.compile(r"/v1/(tools/[^/]+/call|login-links|credentials/rotate-key)$")
# Errors of which it is known that nothing was sent.
_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how long. Waits double from `base` to `longest_backoff`, with jitter, all in seconds."""

    attempts: int = 4
    base: float = 0.25
    longest_backoff: float = 8.0
    longest_wait: float = 30.0
    """A `Retry-After` beyond this is not waited for: the answer is the error."""

    def wait(self, attempt: int, hint: float | None) -> float | None:
        """Seconds before the attempt after this one, the first being 1; `None`: there is none."""
        if attempt >= self.attempts or (hint is not None and hint > self.longest_wait):
            return None
        return max(hint or 0.0, self.backoff(attempt))

    def backoff(self, attempt: int) -> float:
        """Seconds before the next attempt where the service has said nothing."""
        limit = min(self.base * 2.0 ** min(attempt - 1, 30), self.longest_backoff)
        return limit * random.uniform(0.5, 1.0)


class RetryTransport(httpx.BaseTransport):
    """Gives each POST an `Idempotency-Key`, and sends again what was refused for now or got no answer.

    A request whose outcome is unknown is sent again only where a repetition does nothing twice.
    """

    def __init__(
        self,
        inner: httpx.BaseTransport | None = None,
        policy: RetryPolicy | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._inner = inner or httpx.HTTPTransport()
        self._policy = policy or RetryPolicy()
        self._sleep = sleep

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        is_keyed = request.method == "POST" and not _UNKEYED.search(request.url.path)
        if is_keyed and "idempotency-key" not in request.headers:
            request.headers["idempotency-key"] = str(uuid.uuid4())
        request.read()  # so that the body can be sent again
        is_repeatable = is_keyed or request.method in _SAFE_METHODS
        is_unknown = False
        attempt = 0
        while True:
            attempt += 1
            try:
                response = self._send(request)
            except httpx.TransportError as error:
                is_sent = not isinstance(error, _NOT_SENT)
                wait = self._policy.wait(attempt, None)
                if wait is None or (is_sent and not is_repeatable):
                    raise
                is_unknown = is_unknown or is_sent
            else:
                if is_unknown and request.method == "DELETE" and response.status_code == 404:
                    # an earlier attempt has deleted it, and its answer was lost
                    response.close()
                    return httpx.Response(204)
                if response.status_code not in RETRIED_STATUSES:
                    return response
                # only 429 says for sure that nothing was done
                is_refused = response.status_code == 429
                wait = self._policy.wait(attempt, retry_after(response.headers))
                if wait is None or not (is_refused or is_repeatable):
                    return response
                is_unknown = is_unknown or not is_refused
                response.close()
            self._sleep(wait)

    def close(self) -> None:
        self._inner.close()

    def _send(self, request: httpx.Request) -> httpx.Response:
        """The answer with its whole body, which may break off as well; a stream as it is."""
        response = self._inner.handle_request(request)
        if response.headers.get("content-type", "").startswith("text/event-stream"):
            return response
        try:
            body = b"".join(response.iter_raw())
        finally:
            response.close()
        return httpx.Response(
            response.status_code,
            headers=response.headers,
            stream=httpx.ByteStream(body),
            extensions=response.extensions,
        )
