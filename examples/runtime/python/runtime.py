"""A runtime of 30 lines: it takes fires of tasks with the executor `webhook`, and completes their runs later.

    pip install ./sdk/python
    REVEILLE_WEBHOOK_SECRET=whsec_… python3 examples/runtime/python/runtime.py 8080
"""

import os
import sys
import time

from reveille import Failed, Fire, Runtime

runtime = Runtime(os.environ["REVEILLE_WEBHOOK_SECRET"])


@runtime.on_fire
def handle(fire: Fire) -> str:
    """Your agent's work. It may take as long as the task's `completion_timeout_seconds`."""
    time.sleep(0.2)
    if not fire.instruction:
        raise Failed("the task has no instruction", code="no_instruction")
    about = f", with {fire.input}" if fire.input else ""
    return f"{fire.task_name}: did “{fire.instruction}”{about}."


if __name__ == "__main__":
    with runtime.server(port=int(sys.argv[1]) if len(sys.argv) > 1 else 8080) as server:
        print(f"fires are taken at http://127.0.0.1:{server.server_address[1]}", flush=True)
        server.serve_forever()
