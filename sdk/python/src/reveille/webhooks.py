"""Signed requests of the service, as Standard Webhooks has them: messages of the channel `webhook`, and fires."""

import base64
import binascii
import hashlib
import hmac
import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from reveille.errors import ReveilleError

TOLERANCE_SECONDS = 300
"""How far the time of a request may lie from now, in both directions."""

_PREFIX = "whsec_"


class InvalidSignature(ReveilleError):
    """The request is not one that the service has signed, or it is too old. Answer 401."""


@dataclass(frozen=True, slots=True)
class Message:
    """A verified request. `id` is the same at each attempt: drop what was seen."""

    id: str
    sent_at: int
    type: str
    timestamp: str
    data: dict[str, Any]


def verify(
    secrets: str | Iterable[str],
    headers: Mapping[str, str],
    body: bytes,
    *,
    tolerance: float = TOLERANCE_SECONDS,
    now: float | None = None,
) -> Message:
    """The message in a request, if one of the secrets has signed it. `body` is what came, byte by byte."""
    keys = _keys(secrets)
    named = {name.lower(): value for name, value in headers.items()}
    message_id, written, signatures = (named.get(f"webhook-{part}", "") for part in ("id", "timestamp", "signature"))
    if not (message_id and written and signatures):
        raise InvalidSignature("webhook-id, webhook-timestamp and webhook-signature are needed")
    if not (written.isascii() and written.isdigit() and len(written) <= 12):
        raise InvalidSignature("webhook-timestamp is no time")
    if abs((time.time() if now is None else now) - int(written)) > tolerance:
        raise InvalidSignature("webhook-timestamp is too far from now")
    signed = f"{message_id}.{written}.".encode("utf-8", "surrogateescape") + body
    given = [part[3:].encode() for part in signatures.split() if part.startswith("v1,")]
    tags = [base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()) for key in keys]
    # each pair is compared, in constant time
    if not any([hmac.compare_digest(tag, signature) for tag in tags for signature in given]):
        raise InvalidSignature("no signature fits")
    try:
        read = json.loads(body)
        return Message(message_id, int(written), str(read["type"]), str(read["timestamp"]), dict(read["data"]))
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidSignature("the body is no message of Standard Webhooks") from error


def _keys(secrets: str | Iterable[str]) -> list[bytes]:
    """The keys of secrets, which may stand apart by spaces while they are rotated."""
    texts = secrets.split() if isinstance(secrets, str) else [text for one in secrets for text in one.split()]
    try:
        keys = [base64.b64decode(text.removeprefix(_PREFIX), validate=True) for text in texts]
    except binascii.Error as error:
        raise ValueError("a secret is `whsec_` and base64") from error
    if not keys or not all(keys):
        raise ValueError("a secret is needed: `whsec_` and base64")
    return keys
