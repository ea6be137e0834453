"""Reveille from Python: requests that may be repeated, pages, streams that resume, signed webhooks, and a runtime."""

from reveille.client import Client
from reveille.errors import (
    ApiError,
    Conflict,
    FieldError,
    Forbidden,
    Invalid,
    NotFound,
    ReveilleError,
    TooManyRequests,
    Unauthorized,
    Unavailable,
    Unreachable,
)
from reveille.retry import RetryPolicy, RetryTransport
from reveille.runtime import LATER, Answer, Failed, Fire, Runtime
from reveille.streams import EventStream, ServerEvent
from reveille.webhooks import InvalidSignature, Message, verify

__all__ = [
    "LATER",
    "Answer",
    "ApiError",
    "Client",
    "Conflict",
    "EventStream",
    "Failed",
    "FieldError",
    "Fire",
    "Forbidden",
    "Invalid",
    "InvalidSignature",
    "Message",
    "NotFound",
    "RetryPolicy",
    "RetryTransport",
    "ReveilleError",
    "Runtime",
    "ServerEvent",
    "TooManyRequests",
    "Unauthorized",
    "Unavailable",
    "Unreachable",
    "verify",
]
