"""The package on a real service: a fire is completed by a handler, streams are cut off and resumed, pages are read.

Arguments: where the service is, a token of its admin, and the example of a runtime. Prints a line of JSON.
"""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import httpx

from reveille import Client, EventStream, Fire, Runtime

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


class Cut(httpx.SyncByteStream):
    """A stream whose connection is lost behind the first event with an id."""

    def __init__(self, stream: httpx.SyncByteStream) -> None:
        self._stream = stream

    def __iter__(self) -> Iterator[bytes]:
        come = b""
        for part in self._stream:
            come += part
            while b"\n\n" in come:
                event, come = come.split(b"\n\n", 1)
                yield event + b"\n\n"
                if any(line.startswith(b"id:") for line in event.split(b"\n")):
                    raise httpx.ReadError("cut off")

    def close(self) -> None:
        self._stream.close()


class CuttingTransport(httpx.BaseTransport):
    """Loses connections, and counts the streams that were opened behind a place."""

    def __init__(self) -> None:
        self._inner = httpx.HTTPTransport()
        self.resumed = 0
        self.opened = threading.Event()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        response = self._inner.handle_request(request)
        assert isinstance(response.stream, httpx.SyncByteStream)
        if response.headers.get("content-type", "").startswith("text/event-stream"):
            self.resumed += "last-event-id" in request.headers
            self.opened.set()
            response.stream = Cut(response.stream)
        return response

    def close(self) -> None:
        self._inner.close()


def task(client: Client, url: str, name: str) -> str:
    made = client.post("/v1/tasks", {
        "tenant_id": "ann",
        "name": name,
        "executor": "webhook",
        "trigger": {"type": "event", "source": "shop", "event_type": f"order.{name}"},
        "action": {"instruction": "Pack it.", "config": {"url": url, "secret": SECRET}},
    })
    return str(made["id"])


def fired(client: Client, task_id: str, name: str) -> dict[str, Any]:
    """Publishes an event that wakes the task; its run, once that has ended."""
    client.publish({"tenant_id": "ann", "source": "shop", "type": f"order.{name}", "data": {"total": 7}})
    while not (runs := list(client.items("/v1/runs", task_id=task_id))):
        threading.Event().wait(0.05)
    *_, last = client.follow_run(runs[0]["id"])
    assert last.name == "execution_end", last
    run = client.get(f"/v1/runs/{runs[0]['id']}")
    assert run["state"] == "succeeded", run
    return dict(run)


def completed_by_a_handler(client: Client) -> tuple[str, str]:
    runtime = Runtime(SECRET)

    @runtime.on_fire
    def handle(fire: Fire) -> dict[str, Any]:
        # a run that was asked for has no event
        total = fire.cause["event"]["data"]["total"] if fire.cause else None
        return {"total": total, "told": fire.instruction}

    with runtime.server() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        task_id = task(client, f"http://127.0.0.1:{server.server_address[1]}/fires", "own")
        run = fired(client, task_id, "own")
        for _ in range(2):
            more = client.post(f"/v1/tasks/{task_id}/run", None)
            list(client.follow_run(more["id"]))
        runtime.close()
        server.shutdown()
    return task_id, str(run["output"])


def completed_by_the_example(client: Client, example: str) -> str:
    env = os.environ | {"REVEILLE_WEBHOOK_SECRET": SECRET}
    with subprocess.Popen([sys.executable, example, "0"], env=env, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().split()[-1]
            return str(fired(client, task(client, url, "example"), "example")["output"])
        finally:
            process.kill()


def main(url: str, token: str, example: str) -> None:
    cutting = CuttingTransport()
    with Client(url, token) as client, Client(url, token, transport=cutting) as cut_off:
        task_id, output = completed_by_a_handler(client)
        example_output = completed_by_the_example(client, example)

        runs = list(client.items("/v1/runs", task_id=task_id))
        one_by_one = list(client.items("/v1/runs", task_id=task_id, limit=1))
        assert [run["id"] for run in one_by_one] == [run["id"] for run in runs], one_by_one

        whole = [(event.name, event.id) for event in client.follow_run(runs[0]["id"])]
        resumed = [(event.name, event.id) for event in cut_off.follow_run(runs[0]["id"])]
        assert resumed == whole, (resumed, whole)
        assert cutting.resumed > 0, whole

        before = cutting.resumed
        cutting.opened.clear()
        followed = cut_off.follow_events(tenant_id="ann", source="shop", type="stock")
        seen: list[int] = []
        reader = threading.Thread(target=read_events, args=(followed, seen), daemon=True)
        reader.start()
        assert cutting.opened.wait(60)
        for number in range(3):
            client.publish({"tenant_id": "ann", "source": "shop", "type": "stock", "data": {"n": number}})
        reader.join(60)
        told = {
            "output": json.loads(output),
            "example": example_output,
            "runs": len(runs),
            "events": seen,
            "events_resumed": cutting.resumed - before,
        }
    print(json.dumps(told))


def read_events(followed: EventStream, seen: list[int]) -> None:
    """Reads three events, then ends the stream."""
    with followed:
        for event in followed:
            seen.append(event.json()["data"]["n"])
            if len(seen) == 3:
                return


if __name__ == "__main__":
    main(*sys.argv[1:4])
