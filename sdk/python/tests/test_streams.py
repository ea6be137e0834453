"""Streams over lost connections."""

import unittest

from reveille import ApiError, Client, EventStream, NotFound, ServerEvent, Unreachable
from reveille.streams import parse
from service import BROKEN, Service, Told, stream

SESSION = "event: session\ndata: {}\n\n"


def event(event_id: str, name: str = "event") -> str:
    return f"id: {event_id}\nevent: {name}\ndata: {{\"n\": \"{event_id}\"}}\n\n"


class StreamCase(unittest.TestCase):
    def setUp(self) -> None:
        self.slept: list[float] = []

    def client(self, script: list[Told]) -> tuple[Client, Service]:
        service = self.enterContext(Service(script))
        return self.enterContext(Client(service.url, "rv_test", sleep=self.slept.append)), service

    def places(self, service: Service) -> list[str | None]:
        return [asked.headers.get("last-event-id") for asked in service.asked]

    def test_run_is_followed_over_lost_connections_to_its_end(self) -> None:
        client, service = self.client([
            stream(SESSION + event("1") + event("2")[:-5], breaks=True),
            BROKEN,
            Told(503, {}, {"retry-after": "2"}),
            stream(SESSION + event("2")),
            stream(SESSION + event("3", "execution_end") + event("4")),
        ])
        seen = list(client.follow_run("r/1"))
        self.assertEqual([one.id for one in seen], ["", "1", "2", "3"])
        self.assertEqual([one.name for one in seen], ["session", "event", "event", "execution_end"])
        self.assertEqual(self.places(service), [None, "1", "1", "1", "2"])
        self.assertEqual(service.asked[0].path, "/v1/runs/r%2F1/stream")
        self.assertEqual(self.slept[2], 2.0)

    def test_events_go_on_behind_a_place_that_was_stored(self) -> None:
        client, service = self.client([stream(event("6"), breaks=True), stream(event("7"))])
        with client.follow_events(source="shop", last_event_id="5") as events:
            self.assertEqual([next(events).id, events.last_event_id, next(events).id], ["6", "6", "7"])
        self.assertEqual(self.places(service), ["5", "6"])
        self.assertEqual(service.asked[0].path, "/v1/events/stream?source=shop")

    def test_first_connection_that_fails_loses_no_event(self) -> None:
        client, _ = self.client([BROKEN, stream(SESSION + event("1", "execution_end"))])
        self.assertEqual([one.name for one in client.follow_run("r")], ["session", "execution_end"])

    def test_place_without_an_event_is_kept(self) -> None:
        client, service = self.client([stream("id: 9\n\n"), stream(event("10"))])
        self.assertEqual(next(client.follow_events()).id, "10")
        self.assertEqual(self.places(service), [None, "9"])

    def test_refusal_ends_a_stream(self) -> None:
        client, _ = self.client([stream(SESSION), Told(404, {"title": "Nothing is here"})])
        with self.assertRaises(NotFound):
            list(client.follow_run("r"))

    def test_patience_ends(self) -> None:
        with Service([]) as gone:
            url = gone.url
        with Client(url, "rv_test", sleep=self.slept.append) as client:
            with self.assertRaises(Unreachable):
                next(client.follow_run("r", patience=0.0))
        client, _ = self.client([Told(503, {"title": "away"}, {"retry-after": "3600"})])
        with self.assertRaises(ApiError):
            next(client.follow_run("r"))

    def test_stream_of_any_address_is_an_iterator(self) -> None:
        client, service = self.client([stream(event("1"))])
        live = client.stream("/v1/live", params={"tenant_id": "ann", "x": None})
        self.assertIsInstance(live, EventStream)
        self.assertEqual(next(iter(live)).json(), {"n": "1"})
        self.assertEqual(service.asked[0].path, "/v1/live?tenant_id=ann")

    def test_parts_may_be_cut_anywhere(self) -> None:
        text = "\ufeff: alive\r\n\r\nevent: a\r\ndata: é\rdata:  two\nid: 1\n\ndata\n\nid: 2\0\ndata: x\n\nid: 3\n\ndata: lost\n"
        expected = [
            ServerEvent("a", "é\n two", "1"),
            ServerEvent("message", ""),
            ServerEvent("message", "x"),
            ServerEvent("message", "", "3"),
        ]
        body = text.encode()
        for size in range(1, len(body) + 1):
            parts = [body[at : at + size] for at in range(0, len(body), size)]
            self.assertEqual(list(parse(parts)), expected, size)


if __name__ == "__main__":
    unittest.main()
