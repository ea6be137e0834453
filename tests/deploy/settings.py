"""Variables that deploy/ and docs/deploy.md set: each is a key of config/reveille.toml, or another that is known."""

import re

import yaml

# read by the service or by its client, and no keys
OTHERS = {"REVEILLE_CONFIG", "REVEILLE_URL", "REVEILLE_TOKEN", "REVEILLE_PROFILE"}
# of the files themselves, filled in by the operator
OF_FILES = {
    "REVEILLE_BIN", "REVEILLE_HOST", "REVEILLE_PUBLIC_URL", "REVEILLE_ADMIN_TOKEN", "REVEILLE_MASTER_KEY", "REVEILLE_DATABASE_PASSWORD",
    "REVEILLE_POSTGRES_OWNER_PASSWORD", "REVEILLE_REDIS_PASSWORD",
}


def known_keys(root):
    """The dotted keys of the reference, those that are commented out included."""
    table, keys = "", set()
    for line in (root / "config/reveille.toml").read_text().splitlines():
        line = re.sub(r"^# (?=\[|[a-z_]+ = )", "", line)
        if head := re.match(r"\[+([^\]]+)\]+", line):
            table = head[1].replace('"', "")
        elif key := re.match(r"([a-z_]+) = ", line):
            keys.add(f"{table}.{key[1]}")
    return keys


def check(root):
    keys = known_keys(root)
    tables = {key.rsplit(".", 1)[0] for key in keys}
    files = [path for path in (root / "deploy").rglob("*") if path.is_file()]
    files += [page for page in [root / "docs/deploy.md"] if page.exists()]
    found = []
    for path in files:
        for name in sorted(set(re.findall(r"\bREVEILLE_[A-Z0-9_]+", path.read_text()))):
            dotted = name.removeprefix("REVEILLE_").lower().replace("__", ".")
            if name not in OTHERS | OF_FILES and dotted not in keys | tables:
                found.append(f"{path.relative_to(root)}: {name} is no key of config/reveille.toml")
    return found


# what an operator might fill in
KEY = "k1:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
SAMPLES = {
    "REVEILLE_HOST": "reveille.example.org",
    "REVEILLE_ADMIN_TOKEN": "rv_admin_0123456789abcdef",
    "REVEILLE_MASTER_KEY": KEY,
    "REVEILLE_DATABASE_PASSWORD": "0a1b2c",
    "REVEILLE_REDIS_PASSWORD": "0a1b2c",
    "admin-token": "rv_admin_0123456789abcdef",
    "database-url": "postgres://reveille:0a1b2c@postgres/reveille",
    "bus-url": "redis://:0a1b2c@redis:6379/0",
    "master-keys": f'["{KEY}"]',
}


def environments(root):
    """The variables that each file gives a service, filled in: `{file and service: {name: value}}`."""
    deploy = root / "deploy"
    given = {"standalone": lines((deploy / "standalone/reveille.env").read_text())}
    given["systemd"] = lines((deploy / "systemd/reveille.service").read_text(), "Environment=", "%S", "/var/lib")
    place = "/run/credentials/reveille.service"
    given["systemd, master key"] = lines((deploy / "systemd/master-key.conf").read_text(), "Environment=", "%d", place)
    image = (deploy / "docker/Dockerfile").read_text()
    given["image"] = dict(re.findall(r"(REVEILLE_\w+)=(\S+)", image))
    for path in sorted(deploy.glob("*/*.yaml")):
        document = yaml.safe_load(path.read_text())
        for name, service in document.get("services", {}).items():
            if service["image"].startswith("reveille:"):
                own = {key: filled(str(value)) for key, value in service.get("environment", {}).items()}
                given[f"{path.relative_to(root)}, {name}"] = given["image"] | own
    given["kubernetes"] = of_pods(deploy / "kubernetes")
    return given


def lines(text, head="", specifier="", value=""):
    found = re.findall(rf"^{head}'?(REVEILLE_\w+)=(.*?)'?$", text, re.M)
    return {name: said.replace(specifier, value) if specifier else said for name, said in found}


def filled(text):
    """The text as compose reads it, with samples for what must be given."""
    return re.sub(r"\$\{(\w+):([-?])([^}]*)\}", lambda m: m[3] if m[2] == "-" else SAMPLES[m[1]], text)


def of_pods(place):
    (maps,) = yaml.safe_load((place / "kustomization.yaml").read_text())["configMapGenerator"]
    (pod,) = yaml.safe_load((place / "deployment.yaml").read_text())["spec"]["template"]["spec"]["containers"]
    of_map = dict(literal.split("=", 1) for literal in maps["literals"])
    return of_map | {e["name"]: e.get("value") or SAMPLES[e["valueFrom"]["secretKeyRef"]["key"]] for e in pod["env"]}
