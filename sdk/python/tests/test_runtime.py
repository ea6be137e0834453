"""The runtime: fires are verified, answered, handled once and completed."""

import http.client
import json
import threading
import unittest
from typing import Any

import httpx

from reveille import LATER, Answer, Conflict, Failed, Fire, Runtime
from service import BROKEN, Asked, Service, Told
from signing import signed

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
DONE = Told(200, {"state": "succeeded"})


class RuntimeCase(unittest.TestCase):
    def started(self, completions: list[Told], **more: Any) -> tuple[Runtime, Service]:
        service = self.enterContext(Service(completions))
        runtime = Runtime(SECRET, sleep=lambda _: None, **more)
        self.addCleanup(runtime.close)
        return runtime, service

    def fire(self, service: Service, run_id: str = "run-1", **more: Any) -> bytes:
        data = {
            "run": {"id": run_id, "tenant_id": "ann", "attempt": 1},
            "task": {"id": "task-1", "name": "News", "metadata": {}},
            "instruction": "Sum up.",
            "cause": None,
            "input": {"n": 1},
            "completion": {
                "url": f"{service.url}/v1/runs/{run_id}/complete",
                "token": "rv_complete_x",
                "expires_at": "2026-01-01T00:00:00.000Z",
            },
        }
        message = {"type": "run.started", "timestamp": "2026-01-01T00:00:00.000Z", "data": data}
        return json.dumps(message | more).encode()

    def send(self, runtime: Runtime, body: bytes, run_id: str = "run-1") -> Answer:
        return runtime.receive(signed(SECRET, body, run_id), body)

    def test_fire_is_taken_at_once_and_completed_later(self) -> None:
        runtime, service = self.started([BROKEN, Told(503, {}), DONE])
        go_on = threading.Event()
        seen: list[Fire] = []

        @runtime.on_fire
        def handle(fire: Fire) -> dict[str, int]:
            seen.append(fire)
            go_on.wait(10)
            return {"n": fire.input["n"] + 1}

        body = self.fire(service)
        self.assertEqual(self.send(runtime, body).status, 202)
        # its answer was lost
        self.assertEqual(self.send(runtime, body).status, 202)
        self.assertEqual(service.asked, [])
        go_on.set()
        runtime.close()
        self.assertEqual(len(seen), 1)
        fire = seen[0]
        self.assertEqual((fire.run_id, fire.task_name, fire.tenant_id, fire.instruction), ("run-1", "News", "ann", "Sum up."))
        self.assertNotIn("rv_complete_x", repr(fire) + repr(fire.data))
        self.assertEqual([asked.path for asked in service.asked], ["/v1/runs/run-1/complete"] * 3)
        self.assertEqual({asked.headers["authorization"] for asked in service.asked}, {"Bearer rv_complete_x"})
        self.assertEqual(len({asked.headers["idempotency-key"] for asked in service.asked}), 1)
        self.assertEqual(service.asked[2].json(), {"state": "succeeded", "output": {"n": 2}})

    def test_exception_fails_the_run(self) -> None:
        runtime, service = self.started([DONE] * 3)
        raised: list[Any] = [Failed("no money", code="no_money"), KeyError("x"), None]

        @runtime.on_fire
        def handle(_: Fire) -> object:
            error = raised.pop(0)
            if error is None:
                return object()  # which is no JSON
            raise error

        with self.assertLogs("reveille.runtime", "ERROR"):
            for n in range(3):
                self.send(runtime, self.fire(service, f"run-{n}"), f"run-{n}")
                while len(service.asked) <= n:
                    threading.Event().wait(0.01)
            runtime.close()
        errors = [asked.json()["error"] for asked in service.asked]
        self.assertEqual({asked.json()["state"] for asked in service.asked}, {"failed"})
        self.assertEqual(errors[0], {"code": "no_money", "message": "no money"})
        self.assertEqual(errors[1], {"code": "handler_failed", "message": "KeyError: 'x'"})
        self.assertEqual(errors[2]["code"], "handler_failed")

    def test_output_that_is_refused_fails_the_run(self) -> None:
        runtime, service = self.started([Told(413, {"title": "too large"}), DONE])
        runtime.on_fire(lambda _: "x" * 100)
        self.send(runtime, self.fire(service))
        runtime.close()
        self.assertEqual([asked.json()["state"] for asked in service.asked], ["succeeded", "failed"])
        self.assertEqual(service.asked[1].json()["error"]["code"], "output_refused")

    def test_report_that_came_too_early_is_the_answer_to_the_repetition(self) -> None:
        runtime, service = self.started([Told(409, {"title": "conflict"})])
        runtime.on_fire(lambda _: "done")
        body = self.fire(service)
        with self.assertLogs("reveille.runtime", "WARNING"):
            self.send(runtime, body)
            runtime.close()
        answer = self.send(runtime, body)
        self.assertEqual((answer.status, json.loads(answer.body)), (200, {"state": "succeeded", "output": "done"}))

    def test_handler_completes_by_itself(self) -> None:
        runtime, service = self.started([DONE, Told(409, {"title": "conflict"})])
        kept: list[Fire] = []

        @runtime.on_fire
        def handle(fire: Fire) -> object:
            kept.append(fire)
            return LATER

        self.send(runtime, self.fire(service))
        while not kept:
            threading.Event().wait(0.01)
        kept[0].fail("m" * 3000, code="c")
        with self.assertRaises(Conflict):
            kept[0].complete("late")
        self.assertEqual(len(service.asked[0].json()["error"]["message"]), 2000)

    def test_full_runtime_asks_to_be_asked_again(self) -> None:
        runtime, service = self.started([DONE] * 3, workers=1, queue=1)
        go_on = threading.Event()
        runtime.on_fire(lambda _: go_on.wait(10))
        statuses = [self.send(runtime, self.fire(service, f"run-{n}"), f"run-{n}").status for n in range(3)]
        self.assertEqual(statuses, [202, 202, 503])
        go_on.set()
        while len(service.asked) < 2:
            threading.Event().wait(0.01)
        threading.Event().wait(0.1)
        self.assertEqual(self.send(runtime, self.fire(service, "run-2"), "run-2").status, 202)

    def test_requests_that_are_no_fires_are_refused(self) -> None:
        runtime, service = self.started([])
        with self.assertRaisesRegex(RuntimeError, "on_fire"):
            runtime.receive({}, b"")
        runtime.on_fire(lambda _: self.fail("it was handled"))
        body = self.fire(service)
        with self.assertLogs("reveille.runtime", "WARNING"):
            self.assertEqual(runtime.receive({}, body).status, 401)
            self.assertEqual(runtime.receive(signed(SECRET, body, "run-1", 1), body).status, 401)
            for wrong in (self.fire(service, type="run.succeeded"), self.fire(service, data={"run": {}})):
                self.assertEqual(self.send(runtime, wrong).status, 400)

    def test_server_takes_fires_and_refuses_what_it_can_not_read(self) -> None:
        told = threading.Event()

        def completed(_: Asked) -> Told:
            told.set()
            return DONE

        service = self.enterContext(Service(completed))
        runtime = Runtime(SECRET)
        self.addCleanup(runtime.close)
        runtime.on_fire(lambda fire: fire.instruction)
        with runtime.server() as server:
            threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
            url = f"http://127.0.0.1:{server.server_address[1]}/runs"
            body = self.fire(service)
            self.assertEqual(httpx.post(url, content=body, headers=signed(SECRET, body, "run-1")).status_code, 202)
            self.assertTrue(told.wait(10))
            parts = iter([b"in parts"])
            self.assertEqual(httpx.post(url, content=parts).status_code, 411)
            large = http.client.HTTPConnection("127.0.0.1", int(server.server_address[1]))
            large.putrequest("POST", "/runs")
            large.putheader("content-length", str(1 << 40))
            large.endheaders()
            self.assertEqual(large.getresponse().status, 413)
            large.close()
            self.assertEqual(httpx.get(url).status_code, 501)
            server.shutdown()
        self.assertEqual(service.asked[0].json()["output"], "Sum up.")


if __name__ == "__main__":
    unittest.main()
