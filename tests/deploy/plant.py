"""Faults that the checks must find: each is written into a copy of the files, and the checks are asked."""

import shutil
import tempfile
from pathlib import Path

# file, what stands there, what is written in its place, the check that must complain
FAULTS = [
    ("deploy/systemd/reveille.service", "Type=exec", "Type=notify", "unit"),
    ("deploy/systemd/reveille.service", "PrivateTmp=yes", "PrivateTemp=yes", "unit"),
    ("deploy/systemd/reveille.service", "CapabilityBoundingSet=\n", "", "unit"),
    ("deploy/systemd/reveille.service", "SystemCallFilter=", "# SystemCallFilter=", "unit"),
    ("deploy/systemd/reveille.service", "LoadCredential=", "# LoadCredential=", "unit"),
    ("deploy/systemd/master-key.conf", "LoadCredential=", "LoadCredentials=", "unit"),
    ("deploy/systemd/tmpfiles.conf", "0600 root", "0644 root", "unit"),
    ("deploy/docker/Dockerfile", "USER 10001:10001", "USER root", "image"),
    ("deploy/docker/Dockerfile", "USER 10001:10001\n", "", "image"),
    ("deploy/docker/Dockerfile", "FROM debian:bookworm-slim", "FROM debian:latest", "image"),
    ("deploy/docker/Dockerfile", "FROM debian:bookworm-slim", "FROM debian", "image"),
    ("deploy/docker/Dockerfile", "FROM debian:bookworm-slim", "FROM registry.example.org/debian:bookworm-slim", "image"),
    ("deploy/docker/Dockerfile", "HEALTHCHECK", "# HEALTHCHECK", "image"),
    ("deploy/docker/Dockerfile", 'ENTRYPOINT ["reveille"]', "ENTRYPOINT reveille", "image"),
    ("deploy/docker/Dockerfile", "deploy/docker/healthy /usr", "deploy/docker/healty /usr", "image"),
    (".dockerignore", "**/.env\n", "", "image"),
    ("deploy/docker/healthy", '[ "$status" = 200 ]', "true", "health"),
    ("deploy/docker/healthy", "/healthz", "/health", "health"),
    ("deploy/compose/sqlite.yaml", "read_only: true", "readonly: true", "compose"),
    ("deploy/compose/sqlite.yaml", "stop_grace_period: 45s", "stop_grace_period: 10s", "compose"),
    ("deploy/compose/production.yaml", "caddy:2.10", "caddy:latest", "compose"),
    ("deploy/compose/production.yaml", "redis: { condition", "valkey: { condition", "compose"),
    ("deploy/compose/production.yaml", "./postgres-role.sh", "./postgres-rule.sh", "compose"),
    ("deploy/compose/production.yaml", "  data-2: {}\n", "", "compose"),
    ("deploy/compose/production.env.example", "REVEILLE_MASTER_KEY=\n", "", "compose"),
    ("deploy/compose/production.yaml", '\'["172.30.77.2"]\'', '\'["0.0.0.0/0"]\'', "proxy"),
    ("deploy/compose/Caddyfile", "reveille-1:7700 reveille-2:7700", "reveille-1:7700", "proxy"),
    ("deploy/compose/Caddyfile", "health_uri /readyz", "health_uri /healthz", "proxy"),
    ("deploy/compose/Caddyfile", "path /metrics", "path /metric", "proxy"),
    ("deploy/sidecar/app.py", '"output"', '"outcome"', "alone"),
    ("deploy/sidecar/app.py", '"127.0.0.1"', '"127.0.0.2"', "alone"),
    ("deploy/standalone/run", "set -a\n", "", "alone"),
    ("deploy/kubernetes/deployment.yaml", "terminationGracePeriodSeconds: 60", "terminationGraceSeconds: 60", "kubernetes"),
    ("deploy/kubernetes/deployment.yaml", "containerPort: 7700", 'containerPort: "7700"', "kubernetes"),
    ("deploy/kubernetes/deployment.yaml", "readOnlyRootFilesystem: true", "readOnlyRootFilesystem: false", "kubernetes"),
    ("deploy/kubernetes/deployment.yaml", "secretKeyRef: { name: reveille, key: bus-url }", "configMapKeyRef: { name: reveille, key: bus-url }", "kubernetes"),
    ("deploy/kubernetes/deployment.yaml", "path: /readyz", "path: /healthz", "kubernetes"),
    ("deploy/kubernetes/service.yaml", "targetPort: http", "targetPort: web", "kubernetes"),
    ("deploy/kubernetes/disruption-budget.yaml", "policy/v1", "policy/v1beta1", "kubernetes"),
    ("deploy/kubernetes/kustomization.yaml", "  - network-policy.yaml\n", "", "kubernetes"),
    ("deploy/kubernetes/autoscaler.yaml", "minReplicas: 2", "minReplicas: 1", "kubernetes"),
    ("deploy/kubernetes/autoscaler.yaml", "name: reveille_queue_runs", "name: reveille_queue_depth", "metrics"),
    ("deploy/grafana/reveille.json", "reveille_fires_total", "reveille_fired_total", "metrics"),
    ("deploy/grafana/reveille.json", "sum by (reason)", "sum by (cause)", "metrics"),
    ("deploy/grafana/reveille.json", "reveille_run_queue_seconds_bucket", "reveille_run_queue_seconds", "metrics"),
    ("deploy/grafana/reveille.json", "max(reveille_tasks_late", "max((reveille_tasks_late", "metrics"),
    ("deploy/prometheus/reveille.rules.yml", "reveille_tasks_late", "reveille_tasks_too_late", "metrics"),
    ("deploy/prometheus/reveille.rules.yml", 'state="failed"', 'stat="failed"', "metrics"),
    ("deploy/compose/production.yaml", "REVEILLE_DATABASE__MAX_CONNECTIONS", "REVEILLE_DATABASE__MAX_CONNECTION", "settings"),
    ("deploy/standalone/reveille.env", "REVEILLE_ENGINE__RETENTION_DAYS", "REVEILLE_ENGINE_RETENTION_DAYS", "settings"),
    ("deploy/kubernetes/kustomization.yaml", "REVEILLE_TELEMETRY__LOG_FORMAT", "REVEILLE_TELEMETRY__FORMAT", "settings"),
]
# what systemd alone finds
BY_SYSTEMD = {"PrivateTmp=yes", "SystemCallFilter="}
# all that the checks read
READ = ["deploy", "docs/metrics.md", "docs/deploy.md", "config", ".dockerignore"]


def planted():
    """The faults that can be found on this machine."""
    by_systemd = shutil.which("systemd-analyze")
    return [fault for fault in FAULTS if by_systemd or (fault[1] not in BY_SYSTEMD and "master-key" not in fault[0])]


def missed(root, checks):
    """The planted faults that no check names, and those whose place is gone. Without a fault there must be nothing to find."""
    with tempfile.TemporaryDirectory() as dir:
        copy = Path(dir)
        for name in READ:
            source, target = root / name, copy / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target)
        (copy / "src").symlink_to(root / "src")
        before = [fault for check in checks.values() for fault in check(copy)]
        if before:
            return ["before anything is planted:", *before]
        return [why for fault in planted() if (why := outcome(copy, fault, checks))]


def outcome(copy, fault, checks):
    name, old, new, check = fault
    path = copy / name
    text = path.read_text()
    shown = f"{name}: {old.strip()!r} → {new.strip()!r}"
    if old not in text:
        return f"{shown}: there is no such place"
    path.write_text(text.replace(old, new))
    try:
        named = bool(checks[check](copy))
    except Exception as error:  # a check that breaks says nothing to a person
        return f"{shown}: the checks broke: {error!r}"
    finally:
        path.write_text(text)
    return None if named else f"{shown}: the check {check} did not find it"
