"""Requests, repetitions, pages and errors."""

import unittest
from typing import Any

import httpx

from reveille import ApiError, Client, Conflict, Invalid, RetryPolicy, RetryTransport, TooManyRequests, Unreachable
from service import BROKEN, Script, Service, Told


class ClientCase(unittest.TestCase):
    def setUp(self) -> None:
        self.slept: list[float] = []

    def client(self, service: Service, **more: Any) -> Client:
        client = Client(service.url, "rv_test", sleep=self.slept.append, **more)
        self.addCleanup(client.close)
        return client

    def service(self, script: list[Told] | Script) -> Service:
        return self.enterContext(Service(script))

    def test_post_without_an_answer_is_sent_again_under_its_key(self) -> None:
        service = self.service([BROKEN, Told(201, {"id": "1"}, breaks=True), Told(503), Told(201, {"id": "1"})])
        self.assertEqual(self.client(service).post("/v1/tasks", {"name": "a"}), {"id": "1"})
        keys = {asked.headers["idempotency-key"] for asked in service.asked}
        self.assertEqual((len(service.asked), len(keys)), (4, 1))
        self.assertEqual({asked.body for asked in service.asked}, {b'{"name":"a"}'})
        self.assertEqual(service.asked[0].headers["authorization"], "Bearer rv_test")

    def test_two_posts_have_two_keys_and_a_key_of_the_caller_is_kept(self) -> None:
        service = self.service([Told(201, {})] * 3)
        client = self.client(service)
        client.post("/v1/tasks", {})
        client.post("/v1/tasks", {})
        client.post("/v1/tasks", {}, idempotency_key="mine")
        keys = [asked.headers["idempotency-key"] for asked in service.asked]
        self.assertEqual((len(set(keys)), keys[2]), (3, "mine"))

    def test_retry_after_is_waited_for(self) -> None:
        service = self.service([Told(429, {}, {"retry-after": "7"}), Told(200, {"items": []})])
        self.client(service).get("/v1/runs")
        self.assertEqual(self.slept, [7.0])

    def test_retry_after_beyond_the_longest_wait_is_the_error(self) -> None:
        problem = {"type": "urn:reveille:problem:quota_exceeded", "title": "t", "status": 429, "detail": "d"}
        service = self.service([Told(429, problem, {"retry-after": "3600"})])
        with self.assertRaises(TooManyRequests) as raised:
            self.client(service).post("/v1/tasks", {})
        self.assertEqual((raised.exception.retry_after, self.slept), (3600.0, []))

    def test_attempts_end_with_the_last_error(self) -> None:
        service = self.service([Told(503, {"title": "away", "detail": "the database is away"})] * 2)
        with self.assertRaisesRegex(ApiError, "503 away: the database is away"):
            self.client(service, policy=RetryPolicy(attempts=2)).get("/v1/runs")
        self.assertEqual(len(self.slept), 1)

    def test_waits_grow_up_to_their_limit(self) -> None:
        policy = RetryPolicy(attempts=99, base=1.0, longest_backoff=8.0)
        for attempt, limit in [(1, 1.0), (2, 2.0), (4, 8.0), (90, 8.0)]:
            wait = policy.wait(attempt, None)
            assert wait is not None
            self.assertTrue(limit / 2 <= wait <= limit, (attempt, wait))
        self.assertIsNone(policy.wait(99, None))

    def test_change_without_a_key_is_not_sent_again_once_it_may_have_been_done(self) -> None:
        for method, path in [("PATCH", "/v1/tasks/1"), ("POST", "/v1/tools/pay/call")]:
            with self.subTest(path):
                service = self.service([BROKEN])
                with self.assertRaises(Unreachable):
                    self.client(service).request(method, path, json={})
                self.assertNotIn("idempotency-key", service.asked[0].headers)
                unavailable = self.service([Told(503, {})])
                with self.assertRaises(ApiError):
                    self.client(unavailable).request(method, path, json={})
                refused = self.service([Told(429, {}), Told(200, {})])
                self.client(refused).request(method, path, json={})

    def test_unreachable_service_is_tried_again_and_then_an_error(self) -> None:
        with Service([]) as gone:
            url = gone.url
        client = Client(url, "rv_test", sleep=self.slept.append)
        with client, self.assertRaises(Unreachable):
            client.patch("/v1/tasks/1", {})
        self.assertEqual(len(self.slept), 3)

    def test_deletion_whose_answer_was_lost_has_succeeded(self) -> None:
        service = self.service([BROKEN, Told(404, {})])
        self.assertIsNone(self.client(service).delete("/v1/tasks/1"))
        service = self.service([Told(404, {})])
        with self.assertRaises(ApiError):
            self.client(service).delete("/v1/tasks/1")

    def test_pages_are_read_to_the_last_though_one_is_empty(self) -> None:
        pages = [
            Told(200, {"items": [{"id": 1}, {"id": 2}], "next_cursor": "a"}),
            Told(200, {"items": [], "next_cursor": "b"}),
            Told(200, {"items": [{"id": 3}], "next_cursor": None}),
        ]
        service = self.service(pages)
        items = self.client(service).items("/v1/runs", limit=2, state=None)
        self.assertEqual(service.asked, [])
        self.assertEqual([item["id"] for item in items], [1, 2, 3])
        paths = [asked.path for asked in service.asked]
        self.assertEqual(paths, [f"/v1/runs?limit=2{more}" for more in ["", "&cursor=a", "&cursor=b"]])

    def test_page_that_leads_to_itself_is_the_last(self) -> None:
        service = self.service(lambda _: Told(200, {"items": [1], "next_cursor": "a"}))
        self.assertEqual(len(list(self.client(service).items("/v1/runs"))), 2)

    def test_problem_is_told_with_its_places(self) -> None:
        problem = {
            "type": "urn:reveille:problem:invalid",
            "title": "The request is not valid",
            "status": 422,
            "detail": "1 fault; see errors",
            "errors": [{"pointer": "/name", "message": "is missing"}],
        }
        service = self.service([Told(422, problem), Told(409, b"<html>"), Told(418, ["no problem"])])
        client = self.client(service)
        with self.assertRaises(Invalid) as raised:
            client.post("/v1/tasks", {})
        error = raised.exception
        self.assertEqual((error.status, error.type, error.errors[0].pointer), (422, problem["type"], "/name"))
        self.assertIn("/name: is missing", str(error))
        with self.assertRaises(Conflict) as raised_conflict:
            client.post("/v1/tasks", {})
        self.assertEqual(raised_conflict.exception.type, "about:blank")
        with self.assertRaises(ApiError):
            client.post("/v1/tasks", {})

    def test_events_are_published_and_their_ids_told(self) -> None:
        service = self.service([Told(202, {"ids": ["a", "b"]})])
        self.assertEqual(self.client(service).publish({"type": "x"}, {"type": "y"}), ["a", "b"])
        self.assertEqual(service.asked[0].json(), [{"type": "x"}, {"type": "y"}])

    def test_transport_serves_clients_of_generators(self) -> None:
        service = self.service([Told(503, {}), Told(201, {"id": "1"})])
        with httpx.Client(transport=RetryTransport(sleep=self.slept.append)) as generated:
            answer = generated.post(f"{service.url}/v1/tasks", json={})
        self.assertEqual((answer.json(), len({a.headers["idempotency-key"] for a in service.asked})), ({"id": "1"}, 1))
        self.assertGreaterEqual(answer.elapsed.total_seconds(), 0)

    def test_token_is_needed(self) -> None:
        with self.assertRaisesRegex(ValueError, "REVEILLE_TOKEN"):
            Client("http://127.0.0.1:1", "")


if __name__ == "__main__":
    unittest.main()
