"""The image, its health command, the compose files and the proxy in front."""

import io
import json
import re
import shutil
import socket
import subprocess
import tempfile
import threading
from pathlib import Path

import yaml
from dockerfile_parse import DockerfileParser

# keys of the services in our files; one more is added here when it is used
SERVICE_KEYS = {
    "image", "build", "init", "restart", "stop_grace_period", "read_only", "tmpfs", "cap_drop", "cap_add", "security_opt", "ports",
    "networks", "network_mode", "environment", "volumes", "healthcheck", "depends_on", "command", "user", "shm_size",
}
TOP_KEYS = {"name", "services", "networks", "volumes"}
HEALTH_KEYS = {"test", "interval", "timeout", "start_period", "retries"}
# longer than [engine] shutdown_grace_seconds by this
STOP_SLACK = 10


def pinned(image):
    """Whether an image has a tag that says which version it is, and no address of a registry, which the operator chooses."""
    first, _, rest = image.partition("/")
    if rest and re.search(r"[.:]", first):
        return False
    tag = image.rsplit("/", 1)[-1].partition(":")[2].partition("@")[0]
    return bool(re.search(r"\d|bookworm", tag)) and "latest" not in tag


def grace(root):
    said = re.search(r"^shutdown_grace_seconds = ([\d.]+)", (root / "config/reveille.toml").read_text(), re.M)
    return float(said[1])


def check_image(root):
    path = root / "deploy/docker/Dockerfile"
    steps = DockerfileParser(fileobj=io.BytesIO(path.read_bytes())).structure
    of = lambda name, among: [step["value"] for step in among if step["instruction"] == name]
    starts = [index for index, step in enumerate(steps) if step["instruction"] == "FROM"]
    last = steps[starts[-1]:]
    found = [f"the image {value} must have a pinned tag and no registry" for value in of("FROM", steps) if not pinned(value.split()[0])]
    users = of("USER", last)
    if not users or users[-1].split(":")[0] in ("root", "0") or not users[-1].split(":")[0].isdigit():
        found.append("USER must be a number other than 0, so that Kubernetes sees that it is not root")
    if len(starts) < 2 or not any("--from=" in value for value in of("COPY", last)):
        found.append("the compiler must stay in a stage of its own")
    if not of("HEALTHCHECK", last):
        found.append("HEALTHCHECK is missing")
    if of("ADD", steps):
        found.append("COPY, not ADD")
    for name in ("ENTRYPOINT", "CMD"):
        value = of(name, last)
        if not value or not value[-1].startswith("["):
            found.append(f"{name} must be a list, so that signals reach the service")
    if any("apt-get install" in value and "--no-install-recommends" not in value for value in of("RUN", steps)):
        found.append("apt-get install wants --no-install-recommends")
    if not any("--locked" in value for value in of("RUN", steps)):
        found.append("cargo build wants --locked")
    ignored = (root / ".dockerignore").read_text().split()
    for name in (".git", "target", "data", "**/.env", "**/node_modules", "**/.venv"):
        if name not in ignored:
            found.append(f".dockerignore must have {name}")
    for values in of("COPY", steps):
        words = [word for word in values.split() if not word.startswith("--")]
        if "--from=" not in values and not all((root / word).exists() for word in words[:-1]):
            found.append(f"COPY {values}: no such file")
    return [f"Dockerfile: {fault}" for fault in found]


def check_health_command(root):
    """It succeeds for 200, and fails for 503 and for a closed port."""
    command = root / "deploy/docker/healthy"
    answered = {200: 0, 503: 1}
    found = [f"healthy: {status} must give {code}" for status, code in answered.items() if bool(ask(command, status)) != bool(code)]
    if ask(command, None) == 0:
        found.append("healthy: a closed port must fail")
    return found


def ask(command, status):
    """The exit code of the command against a server that answers one request so; `None` is a server that is gone."""
    server = socket.create_server(("127.0.0.1", 0))
    port = server.getsockname()[1]

    def answer():
        connection, _ = server.accept()
        with connection:
            asked = b""
            while b"\r\n\r\n" not in asked and (more := connection.recv(4096)):
                asked += more
            right = asked.startswith(b"GET /healthz HTTP/1.1\r\n") and b"\r\nHost:" in asked
            connection.sendall(f"HTTP/1.1 {status if right else 400} X\r\ncontent-length: 0\r\n\r\n".encode())

    if status is None:
        server.close()
    else:
        server.settimeout(10)
        threading.Thread(target=answer, daemon=True).start()
    ended = subprocess.run(["bash", str(command), str(port)], capture_output=True, timeout=10)
    server.close()
    return ended.returncode


def seconds(text):
    return float(re.fullmatch(r"(\d+)s", str(text))[1])


def check_compose(root):
    files = sorted(root.glob("deploy/*/*.yaml"))
    found = []
    for path in files:
        document = yaml.safe_load(path.read_text())
        if isinstance(document, dict) and "services" in document:
            found += [f"{path.relative_to(root)}: {fault}" for fault in compose_faults(root, path, document)]
    return found


def compose_faults(root, path, document):
    unknown = {key for key in document if not key.startswith("x-")} - TOP_KEYS
    found = [f"unknown key {key}" for key in sorted(unknown)]
    services = document["services"]
    used = set()
    for name, service in services.items():
        found += [f"{name}: {fault}" for fault in service_faults(root, path, document, service)]
        used |= {volume.split(":")[0] for volume in service.get("volumes", []) if not volume.startswith((".", "/"))}
    found += [f"volume {name} is not used or not declared" for name in sorted(used ^ set(document.get("volumes", {})))]
    asked = set(re.findall(r"\$\{(\w+):\?", path.read_text()))
    example = path.with_name(f"{path.stem}.env.example")
    shown = set(re.findall(r"^(\w+)=", example.read_text(), re.M)) if example.exists() else set()
    return found + [f"{name} is not shown in {path.stem}.env.example, or not asked for" for name in sorted(asked ^ shown)]


def service_faults(root, path, document, service):
    found = [f"unknown key {key}" for key in sorted(set(service) - SERVICE_KEYS)]
    if not pinned(service.get("image", "")):
        found.append(f"the image {service.get('image')} must have a pinned tag and no registry")
    health = service.get("healthcheck", {})
    if set(health) - HEALTH_KEYS or health.get("test", [None])[0] not in ("CMD", "CMD-SHELL"):
        found.append("healthcheck must have a test")
    services, networks = document["services"], document.get("networks", {})
    depends = service.get("depends_on", [])
    mode = service.get("network_mode", "")
    others = list(depends) + ([mode.removeprefix("service:")] if mode.startswith("service:") else [])
    found += [f"no service {other}" for other in others if other not in services]
    if isinstance(depends, dict):
        healthy = [other for other, how in depends.items() if how.get("condition") == "service_healthy"]
        found += [f"{other} has no healthcheck" for other in healthy if "healthcheck" not in services.get(other, {})]
    found += [f"no network {name}" for name in service.get("networks", []) if name not in networks]
    for volume in service.get("volumes", []):
        source = volume.split(":")[0]
        if source.startswith(".") and not (path.parent / source).exists():
            found.append(f"{source} is not there")
    if service.get("image", "").startswith("reveille:"):
        if not service.get("read_only") or service.get("cap_drop") != ["ALL"]:
            found.append("must have a read-only root and no capabilities")
        if seconds(service.get("stop_grace_period", "10s")) < grace(root) + STOP_SLACK:
            found.append("stop_grace_period must be longer than [engine] shutdown_grace_seconds")
        if "build" in service:
            context = (path.parent / service["build"]["context"]).resolve()
            if context != root or not (context / service["build"]["dockerfile"]).exists():
                found.append("build must lead to the root and its Dockerfile")
        if service.get("user", "10001") in ("root", "0"):
            found.append("must not be root")
    return found


def check_proxy(root):
    """Every instance stands behind the proxy, which is the one that the instances believe; `caddy` itself where it is there."""
    place = root / "deploy/compose"
    text = (place / "Caddyfile").read_text()
    document = yaml.safe_load((place / "production.yaml").read_text())
    services = document["services"]
    instances = {f"{name}:7700" for name, service in services.items() if service["image"].startswith("reveille:")}
    upstreams = re.search(r"^\treverse_proxy (.*) \{$", text, re.M)
    found = []
    if len(instances) < 2 or upstreams is None or set(upstreams[1].split()) != instances:
        found.append(f"reverse_proxy must name {' '.join(sorted(instances))}")
    for wanted in ("health_uri /readyz", "flush_interval -1", "path /metrics", "lb_try_duration"):
        if wanted not in text:
            found.append(f"`{wanted}` is missing")
    if text.count("{") != text.count("}") or "tls internal" in text or "http://" in text:
        found.append("one site with a certificate")
    address = services["proxy"]["networks"]["front"]["ipv4_address"]
    for name, service in services.items():
        if service["image"].startswith("reveille:"):
            said = service["environment"]
            if json.loads(said["REVEILLE_SERVER__TRUSTED_PROXIES"]) != [address]:
                found.append(f"{name} must believe the proxy {address} alone")
            if not said["REVEILLE_SERVER__PUBLIC_URL"].startswith("https://"):
                found.append(f"{name}: server.public_url must be https")
            if service.get("ports"):
                found.append(f"{name} must be reached by the proxy alone")
    if shutil.which("caddy"):
        with tempfile.TemporaryDirectory() as dir:
            copy = Path(dir) / "Caddyfile"
            copy.write_text(text.replace("{$REVEILLE_HOST}", "reveille.example.org"))
            ended = subprocess.run(["caddy", "adapt", "--config", str(copy), "--adapter", "caddyfile"], capture_output=True, text=True, timeout=60)
        if ended.returncode != 0:
            found.append(f"caddy adapt: {ended.stderr.strip()}")
    return [f"Caddyfile: {fault}" for fault in found]
