"""Signatures of Standard Webhooks."""

import json
import unittest

from reveille import InvalidSignature, verify
from signing import signed

# the vector of the specification and its libraries
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OTHER = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"
BODY = b'{"test": 2432232314}'
SENT = 1_614_265_330
HEADERS = {
    "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
    "webhook-timestamp": str(SENT),
    "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
}


class WebhookCase(unittest.TestCase):
    def refused(self, headers: dict[str, str], body: bytes = BODY, secret: str = SECRET, now: float = SENT) -> str:
        with self.assertRaises(InvalidSignature) as raised:
            verify(secret, headers, body, now=now)
        return str(raised.exception)

    def test_vector_of_the_specification_is_signed(self) -> None:
        # its body is no message, which is looked at behind the signature
        self.assertIn("the body", self.refused(HEADERS))

    def test_message_is_read_with_one_of_several_secrets(self) -> None:
        body = json.dumps({"type": "run.succeeded", "timestamp": "2026-01-01T00:00:00.000Z", "data": {"a": 1}}).encode()
        headers = {name.upper(): value for name, value in signed(SECRET, body, "id-1", SENT).items()}
        for secrets in (SECRET, [OTHER, SECRET], f"{OTHER} {SECRET}"):
            message = verify(secrets, headers, body, now=SENT + 299)
            self.assertEqual((message.id, message.type, message.data), ("id-1", "run.succeeded", {"a": 1}))
        # the service signs with each secret while they are rotated
        both = signed(OTHER, body, "id-1", SENT)
        both["webhook-signature"] += " " + headers["WEBHOOK-SIGNATURE"]
        self.assertEqual(verify(SECRET, both, body, now=SENT).id, "id-1")

    def test_request_that_was_changed_is_refused(self) -> None:
        signature = HEADERS["webhook-signature"]
        for changed in (
            {"webhook-id": "msg_other"},
            {"webhook-timestamp": str(SENT + 1)},
            {"webhook-signature": signature.replace("v1,", "v2,")},
            {"webhook-signature": "v1,é"},
            {"webhook-signature": "v1,"},
        ):
            self.assertEqual(self.refused({**HEADERS, **changed}), "no signature fits", changed)
        self.assertEqual(self.refused(HEADERS, body=BODY + b" "), "no signature fits")
        self.assertEqual(self.refused(HEADERS, secret=OTHER), "no signature fits")

    def test_old_and_early_requests_are_refused(self) -> None:
        for now in (SENT + 301, SENT - 301):
            self.assertIn("too far", self.refused(HEADERS, now=now))
        for written in ("", "soon", "-5", "9" * 400, "١٢"):
            self.refused({**HEADERS, "webhook-timestamp": written})
        self.assertIn("are needed", self.refused({}))

    def test_secret_that_is_none_is_an_error_of_the_program(self) -> None:
        wrong: list[str | list[str]] = ["", "whsec_", "whsec_no base64!", []]
        for secret in wrong:
            with self.assertRaises(ValueError):
                verify(secret, HEADERS, BODY, now=SENT)


if __name__ == "__main__":
    unittest.main()
