"""The service by itself and beside an application: the script and the application run."""

import http.client
import importlib.util
import json
import os
import subprocess
import tempfile
import threading
from contextlib import redirect_stdout
from http.server import ThreadingHTTPServer
from io import StringIO
from pathlib import Path


def check(root):
    return standalone(root / "deploy/standalone") + sidecar(root / "deploy/sidecar/app.py")


def standalone(place):
    """The program is started as `serve` with the variables of the file."""
    with tempfile.TemporaryDirectory() as dir:
        program = Path(dir) / "reveille"
        program.write_text('#!/bin/sh\n[ "$*" = serve ] && env\n')
        program.chmod(0o755)
        clean = {"PATH": os.environ["PATH"], "REVEILLE_BIN": str(program)}
        ended = subprocess.run([str(place / "run")], env=clean, capture_output=True, text=True, timeout=10)
    written = [line for line in (place / "reveille.env").read_text().splitlines() if line and not line.startswith("#")]
    lost = [line for line in written if line not in ended.stdout.splitlines()]
    return [f"standalone/run: the program must get {line}" for line in lost]


def sidecar(path):
    """The application answers a fire with an output, and nothing else as one."""
    spec = importlib.util.spec_from_file_location("app", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    server = ThreadingHTTPServer(("127.0.0.1", 0), module.App)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    wanted = [
        ("GET", "/", None, (200, {"status": "ok"})),
        ("POST", "/fire", b'{"run_id": "r"}', (200, {"output": "done"})),
        ("POST", "/fire", b"{", (400, {})),
        ("POST", "/other", b"{}", (404, {})),
    ]
    try:
        with redirect_stdout(StringIO()):
            answers = [ask(server.server_port, method, target, body) for method, target, body, _ in wanted]
    finally:
        server.shutdown()
        server.server_close()
    faults = [(method, target, right) for (method, target, _, right), got in zip(wanted, answers) if got != right]
    return [f"sidecar/app.py: {method} {target} must answer {right[0]} {right[1]}" for method, target, right in faults]


def ask(port, method, target, body):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request(method, target, body)
    answer = connection.getresponse()
    found = answer.status, json.loads(answer.read())
    connection.close()
    return found
