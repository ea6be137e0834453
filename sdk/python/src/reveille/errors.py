"""Errors of the service as exceptions: RFC 9457 problems, by their status."""

import json
from dataclasses import dataclass
from typing import Any

import httpx


class ReveilleError(Exception):
    """Any error of this package."""


class Unreachable(ReveilleError):
    """No answer came, however often the request was sent. A change may have taken effect."""


@dataclass(frozen=True, slots=True)
class FieldError:
    """One fault of a request: an RFC 6901 pointer into it, and a sentence."""

    pointer: str
    message: str


class ApiError(ReveilleError):
    """The service refused a request. `type` is stable, for programs; `problem` is the whole answer."""

    def __init__(self, status: int, problem: dict[str, Any], retry_after: float | None = None) -> None:
        self.status = status
        self.problem = problem
        self.retry_after = retry_after
        """Seconds after which the request may be sent again, where the service has said so."""
        self.type = str(problem.get("type", "about:blank"))
        self.title = str(problem.get("title", ""))
        self.detail = str(problem.get("detail", ""))
        self.errors = [
            FieldError(str(fault.get("pointer", "")), str(fault.get("message", "")))
            for fault in problem.get("errors") or []
            if isinstance(fault, dict)
        ]
        faults = "".join(f"; {fault.pointer or 'the body'}: {fault.message}" for fault in self.errors)
        super().__init__(f"{status} {self.title}: {self.detail}{faults}")

    @staticmethod
    def of(response: httpx.Response) -> "ApiError":
        """The error for a response whose body was read."""
        try:
            problem = json.loads(response.content)
        except ValueError:
            problem = None
        if not isinstance(problem, dict):
            problem = {"title": response.reason_phrase, "detail": "the answer is no problem of RFC 9457"}
        kind = _BY_STATUS.get(response.status_code, ApiError)
        return kind(response.status_code, problem, retry_after(response.headers))


class Invalid(ApiError):
    """Correct what `errors` or `detail` names (400, 422)."""


class Unauthorized(ApiError):
    """A valid token is needed (401)."""


class Forbidden(ApiError):
    """The token does not permit this (403)."""


class NotFound(ApiError):
    """There is none, or not for this token (404)."""


class Conflict(ApiError):
    """The stored state stands in the way, or a person has to confirm (409)."""


class TooManyRequests(ApiError):
    """A rate or a quota is used up (429)."""


class Unavailable(ApiError):
    """The service can't do this now (503)."""


_BY_STATUS: dict[int, type[ApiError]] = {
    400: Invalid,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    422: Invalid,
    429: TooManyRequests,
    503: Unavailable,
}


def retry_after(headers: httpx.Headers) -> float | None:
    """The header `Retry-After` in seconds; `None` where it is missing or can't be read."""
    written = headers.get("retry-after", "").strip()
    return float(written) if written.isascii() and written.isdigit() else None
