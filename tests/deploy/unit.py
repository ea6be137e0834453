"""The unit of systemd: what systemd says of it, and what must stand in it."""

import re
import shutil
import subprocess
import tempfile
from pathlib import Path

# most that `systemd-analyze security` may count
EXPOSURE = 2.0
WANTED = {
    "Type": "exec",
    "User": "reveille",
    "LoadCredential": "reveille.toml:/etc/reveille/reveille.toml",
    "KillMode": "mixed",
    "ProtectSystem": "strict",
    "NoNewPrivileges": "yes",
    "CapabilityBoundingSet": "",
    "StateDirectory": "reveille",
}


def entries(text):
    """Its settings; of one that is written several times, the last."""
    return dict(re.findall(r"^(\w+)=(.*)$", text, re.M))


def check(root):
    place = root / "deploy/systemd"
    text = (place / "reveille.service").read_text()
    said = entries(text)
    found = [f"reveille.service: {key} must be `{value}`" for key, value in WANTED.items() if said.get(key) != value]
    if not re.fullmatch(r"/\S+/reveille serve --config %d/reveille\.toml", said.get("ExecStart", "")):
        found.append("reveille.service: ExecStart must read the configuration from the credentials (%d)")
    speaks = any("NOTIFY_SOCKET" in source.read_text() for source in (root / "src").rglob("*.rs"))
    if not speaks and (said.get("Type", "").startswith("notify") or "WatchdogSec" in said):
        found.append("reveille.service: the service does not speak sd_notify, so no Type=notify and no watchdog")
    if not re.search(r"^u reveille ", (place / "sysusers.conf").read_text(), re.M):
        found.append("sysusers.conf: must make the user of the unit")
    if "/etc/reveille/reveille.toml 0600 root root" not in (place / "tmpfiles.conf").read_text():
        found.append("tmpfiles.conf: must make the file that the unit loads, for root alone")
    return found + by_systemd(text, (place / "master-key.conf").read_text())


def by_systemd(text, drop_in):
    """`systemd-analyze` on a copy whose program is there, with the drop-in; nothing where there is no systemd."""
    if not shutil.which("systemd-analyze"):
        return []
    with tempfile.TemporaryDirectory() as dir:
        copy = Path(dir) / "reveille.service"
        copy.write_text(re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", text, flags=re.M))
        (Path(dir) / "reveille.service.d").mkdir()
        (Path(dir) / "reveille.service.d/master-key.conf").write_text(drop_in)
        verified = run("verify", "--man=no", str(copy))
        secure = run("security", "--offline=true", f"--threshold={int(EXPOSURE * 10)}", "--no-pager", str(copy))
    found = [f"reveille.service: systemd-analyze verify: {line}" for line in verified[1].splitlines() if "reveille" in line]
    if verified[0] != 0 and not found:
        found.append(f"reveille.service: systemd-analyze verify failed: {verified[1].strip()}")
    level = re.search(r"exposure level for \S+: (\d+\.\d+)", secure[1])
    if level is None or secure[0] != 0 or float(level[1]) > EXPOSURE:
        found.append(f"reveille.service: exposure {level[1] if level else 'unknown'}, at most {EXPOSURE}")
    return found


def run(*arguments):
    ended = subprocess.run(["systemd-analyze", *arguments], capture_output=True, text=True, timeout=60)
    return ended.returncode, ended.stdout + ended.stderr
