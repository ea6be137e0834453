"""An application with Reveille at its side: fires of webhook tasks arrive here and are answered with an output.

It does not verify signatures, because nobody but the sidecar reaches /fire: it looks at the address. Elsewhere verify `webhook-signature`.

    python3 app.py [PORT]
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

# most that a fire may have, in bytes
LARGEST = 1 << 20


class App(BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer(200, {"status": "ok"})

    def do_POST(self):
        length = int(self.headers.get("content-length") or 0)
        if self.path != "/fire" or self.client_address[0] != "127.0.0.1" or length > LARGEST:
            return self.answer(404, {})
        try:
            fire = json.loads(self.rfile.read(length))
        except ValueError:
            return self.answer(400, {})
        # the id stays over attempts: keep it, and do nothing for one that was done
        print("fired", self.headers.get("webhook-id"), json.dumps(fire), flush=True)
        self.answer(200, {"output": "done"})

    def answer(self, status, body):
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 8080
    ThreadingHTTPServer(("", port), App).serve_forever()
