"""A client of Python: makes a task that an event wakes, publishes the event, and approves what the agent asks.

Arguments: where the service is, and a token of its admin.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import TypeVar

from reveille_client import AuthenticatedClient
from reveille_client.api.approvals import decide_approval, list_approvals
from reveille_client.api.events import publish_events
from reveille_client.api.runs import get_run
from reveille_client.api.tasks import create_task
from reveille_client.models import (
    Action,
    ApprovalStatus,
    ApprovalView,
    ApprovalViewList,
    ApprovalChoice,
    DecidedView,
    EventIds,
    EventTrigger,
    NewDecision,
    NewEvent,
    NewTask,
    Run,
    RunState,
    Task,
)

PATIENCE_SECONDS = 60
LOOK_SECONDS = 0.05

T = TypeVar("T")


def until(look: Callable[[], T | None]) -> T:
    """Looks until there is something to see."""
    end = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < end:
        seen = look()
        if seen is not None:
            return seen
        time.sleep(LOOK_SECONDS)
    raise TimeoutError("it took too long")


def main(base_url: str, token: str) -> None:
    client = AuthenticatedClient(base_url=base_url, token=token)
    trigger = EventTrigger(type_="event", source="shop", event_type="order")
    action = Action(instruction="What time is it?")
    new_task = NewTask(tenant_id="ann", name="Clock", trigger=trigger, action=action, output=None)
    task = create_task.sync(client=client, body=new_task)
    assert isinstance(task, Task), task
    assert isinstance(task.trigger, EventTrigger) and task.trigger.source == "shop", task

    event = NewEvent(tenant_id="ann", source="shop", type_="order", data={"total": 7})
    published = publish_events.sync(client=client, body=[event])
    assert isinstance(published, EventIds), published

    def asked() -> ApprovalView | None:
        listed = list_approvals.sync(client=client, task_id=task.id, status=ApprovalStatus.PENDING)
        assert isinstance(listed, ApprovalViewList), listed
        return next(iter(listed.items), None)

    approval = until(asked)
    decision = NewDecision(decision=ApprovalChoice.APPROVE, digest=approval.digest, comment="go on")
    decided = decide_approval.sync(approval.id, client=client, body=decision)
    assert isinstance(decided, DecidedView) and decided.status == ApprovalStatus.APPROVED, decided

    def ended() -> Run | None:
        run = get_run.sync(approval.run_id, client=client)
        assert isinstance(run, Run), run
        return run if run.state == RunState.SUCCEEDED else None

    run = until(ended)
    print(json.dumps({"events": len(published.ids), "event_ids": len(run.event_ids), "output": run.output}))


if __name__ == "__main__":
    main(*sys.argv[1:3])
