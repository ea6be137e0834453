"""Queries of Grafana, alerts of Prometheus and the metric of the autoscaler: they are PromQL, of metrics and labels that there are."""

import json
import re

import promql_parser
import yaml

# labels that Prometheus adds
ADDED = {"job", "instance", "le", "namespace"}


def known_metrics(root):
    """The names in docs/metrics.md with their labels; a histogram by the names of its parts."""
    row = re.compile(r"^\| `(\w+)` \| (\w+) \| ([^|]*) \|", re.M)
    known = {}
    for name, kind, labels in row.findall((root / "docs/metrics.md").read_text()):
        labels = set(re.findall(r"`(\w+)`", labels))
        names = [f"{name}_{part}" for part in ("bucket", "sum", "count")] if kind == "histogram" else [name]
        known |= {each: labels for each in names}
    return known


def check(root):
    known = known_metrics(root)
    found = []
    for place, query in [*grafana(root), *alerts(root), *autoscaler(root)]:
        found += [f"{place}: {fault}" for fault in query_faults(query, known)]
    return found + grafana_shape(root)


def query_faults(query, known):
    text = query.replace("$__rate_interval", "5m").replace("$job", ".*").replace("$instance", ".*")
    try:
        promql_parser.parse(text)
    except ValueError as error:
        return [f"`{query}` is no PromQL: {error}"]
    found = []
    used = re.findall(r"\b((?:reveille|process)_\w+)(?:\{([^}]*)\})?", text)
    grouped = {label for group in re.findall(r"\bby \(([^)]*)\)", text) for label in re.split(r"[,\s]+", group) if label}
    if not used:
        found.append(f"`{query}` has no metric")
    there = set(ADDED)
    for name, matchers in used:
        if name not in known:
            found.append(f"{name} is not in docs/metrics.md")
            continue
        there |= known[name]
        matched = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers))
        found += [f"{name} has no label {label}" for label in sorted(matched - known[name] - ADDED)]
    return found + [f"no metric of `{query}` has the label {label}" for label in sorted(grouped - there)]


def grafana(root):
    for panel in board(root)["panels"]:
        for target in panel.get("targets", []):
            yield f"grafana/reveille.json: {panel['title']}", target["expr"]
    for variable in board(root)["templating"]["list"]:
        values = re.fullmatch(r"label_values\((.+), \w+\)", variable["query"])
        if variable["type"] == "query":
            yield f"grafana/reveille.json: ${variable['name']}", values[1] if values else variable["query"]


def board(root):
    return json.loads((root / "deploy/grafana/reveille.json").read_text())


def grafana_shape(root):
    """Every panel has its place and a datasource of the variable, and none covers another."""
    panels = board(root)["panels"]
    found = []
    taken = {}
    for panel in panels:
        at = panel["gridPos"]
        if at["x"] + at["w"] > 24:
            found.append(f"{panel['title']} is wider than the page")
        for cell in ((x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])):
            if taken.setdefault(cell, panel["title"]) != panel["title"]:
                found.append(f"{panel['title']} covers {taken[cell]}")
                break
        if panel["type"] != "row" and panel["datasource"]["uid"] != "${datasource}":
            found.append(f"{panel['title']} must use the variable datasource")
        legends = " ".join(target["legendFormat"] for target in panel.get("targets", []))
        queries = " ".join(target["expr"] for target in panel.get("targets", []))
        found += [f"{panel['title']} shows {label}, which no query keeps" for label in re.findall(r"\{\{(\w+)\}\}", legends) if not re.search(rf"by \([^)]*\b{label}\b", queries)]
    if len({panel["id"] for panel in panels}) != len(panels):
        found.append("ids of panels are not unique")
    return [f"grafana/reveille.json: {fault}" for fault in found]


def alerts(root):
    for path in sorted((root / "deploy/prometheus").glob("*.yml")):
        for group in yaml.safe_load(path.read_text())["groups"]:
            for rule in group["rules"]:
                yield f"prometheus/{path.name}: {rule.get('alert') or rule.get('record')}", rule["expr"]


def autoscaler(root):
    scaler = yaml.safe_load((root / "deploy/kubernetes/autoscaler.yaml").read_text())
    for entry in scaler["spec"]["metrics"]:
        metric = entry["external"]["metric"]
        labels = ",".join(f'{label}="{value}"' for label, value in metric["selector"]["matchLabels"].items())
        yield "kubernetes/autoscaler.yaml", f"{metric['name']}{{{labels}}}"
