"""Signs requests as the service does."""

import base64
import hashlib
import hmac
import time


def signed(secret: str, body: bytes, message_id: str, sent: int | None = None) -> dict[str, str]:
    """The headers of a request with this body."""
    written = str(int(time.time()) if sent is None else sent)
    key = base64.b64decode(secret.removeprefix("whsec_"))
    tag = hmac.new(key, f"{message_id}.{written}.".encode() + body, hashlib.sha256).digest()
    signature = f"v1,{base64.b64encode(tag).decode()}"
    return {"webhook-id": message_id, "webhook-timestamp": written, "webhook-signature": signature}
