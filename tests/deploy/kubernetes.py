"""The base of Kustomize: each manifest by the schema of its kind, and what holds them together."""

import kubernetes_validate
import yaml

# the oldest Kubernetes and the newest by whose schemas they are checked
VERSIONS = ["1.30", "1.37"]
WANTED = {"Deployment", "Service", "ServiceAccount", "PodDisruptionBudget", "NetworkPolicy", "HorizontalPodAutoscaler", "Namespace"}
# files of the folder that are no part of the base
BESIDE = {"kustomization.yaml", "prometheus-adapter.yaml"}
NAME = {"app.kubernetes.io/name": "reveille"}


def check(root):
    place = root / "deploy/kubernetes"
    base = yaml.safe_load((place / "kustomization.yaml").read_text())
    listed = set(base["resources"])
    there = {path.name for path in place.glob("*.yaml")} - BESIDE
    found = [f"kustomization.yaml: {name} is listed and not there, or there and not listed" for name in sorted(listed ^ there)]
    found += [f"kustomization.yaml: {image['name']} has no pinned tag" for image in base["images"] if str(image.get("newTag", "latest")) == "latest"]
    manifests = {}
    for name in sorted(listed & there):
        for manifest in yaml.safe_load_all((place / name).read_text()):
            manifests[manifest.get("kind")] = manifest
            found += [f"{name}: {fault}" for fault in schema_faults(manifest)]
    missing = WANTED - set(manifests)
    if missing:
        return found + [f"missing: {', '.join(sorted(missing))}"]
    adapter = (place / "prometheus-adapter.yaml").read_text()
    return found + pod_faults(manifests["Deployment"], base) + joint_faults(manifests, adapter)


def schema_faults(manifest):
    found = set()
    for version in VERSIONS:
        try:
            kubernetes_validate.validate(manifest, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            found.add(f"{'/'.join(map(str, error.path))}: {error.message}")
        except kubernetes_validate.SchemaNotFoundError:
            found.add(f"no {manifest.get('kind')} of {manifest.get('apiVersion')} in Kubernetes {version}")
    return sorted(found)


def pod_faults(deployment, base):
    spec = deployment["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    security, pod = container.get("securityContext", {}), spec.get("securityContext", {})
    rules = {
        "runAsNonRoot": pod.get("runAsNonRoot") is True and pod.get("runAsUser", 0) > 0,
        "seccompProfile RuntimeDefault": pod.get("seccompProfile") == {"type": "RuntimeDefault"},
        "readOnlyRootFilesystem": security.get("readOnlyRootFilesystem") is True,
        "allowPrivilegeEscalation false": security.get("allowPrivilegeEscalation") is False,
        "capabilities drop ALL": security.get("capabilities", {}).get("drop") == ["ALL"],
        "no token of Kubernetes": spec.get("automountServiceAccountToken") is False,
        "startupProbe of /healthz": probe(container, "startupProbe") == "/healthz",
        "livenessProbe of /healthz": probe(container, "livenessProbe") == "/healthz",
        "readinessProbe of /readyz": probe(container, "readinessProbe") == "/readyz",
        "limits of memory": "memory" in container.get("resources", {}).get("limits", {}),
        "volumes that are there": {m["name"] for m in container["volumeMounts"]} == {v["name"] for v in spec["volumes"]},
        "no number of replicas, which the autoscaler sets": "replicas" not in deployment["spec"],
    }
    secret = {"REVEILLE_SERVER__ADMIN_TOKEN", "REVEILLE_DATABASE__URL", "REVEILLE_BUS__URL", "REVEILLE_VAULT__MASTER_KEYS"}
    referred = {entry["name"] for entry in container["env"] if "secretKeyRef" in entry.get("valueFrom", {})}
    rules["secrets by reference"] = secret == referred
    maps = {entry["configMapRef"]["name"] for entry in container["envFrom"]}
    rules["a map that is generated"] = maps == {entry["name"] for entry in base["configMapGenerator"]}
    return [f"deployment.yaml: wants {rule}" for rule, kept in rules.items() if not kept]


def probe(container, name):
    return container.get(name, {}).get("httpGet", {}).get("path")


def joint_faults(manifests, adapter):
    """Whether they speak of the same pods, ports and names."""
    deployment, scaler = manifests["Deployment"], manifests["HorizontalPodAutoscaler"]["spec"]
    template = deployment["spec"]["template"]
    ports = {port["name"]: port["containerPort"] for port in template["spec"]["containers"][0]["ports"]}
    target = scaler["scaleTargetRef"]
    (metric,) = scaler["metrics"]
    rules = {
        "service-account.yaml: the name in the Deployment": template["spec"]["serviceAccountName"] == manifests["ServiceAccount"]["metadata"]["name"],
        "deployment.yaml: labels of its own": deployment["spec"]["selector"]["matchLabels"] == NAME and template["metadata"]["labels"] == NAME,
        "service.yaml: the pods and their port": manifests["Service"]["spec"]["selector"] == NAME
        and all(port["targetPort"] in ports for port in manifests["Service"]["spec"]["ports"]),
        "disruption-budget.yaml: the pods": manifests["PodDisruptionBudget"]["spec"]["selector"] == {"matchLabels": NAME},
        "network-policy.yaml: the pods, both ways": manifests["NetworkPolicy"]["spec"]["podSelector"] == {"matchLabels": NAME}
        and set(manifests["NetworkPolicy"]["spec"]["policyTypes"]) == {"Ingress", "Egress"},
        "network-policy.yaml: the port of the pods": all(
            port["port"] in ports.values() for rule in manifests["NetworkPolicy"]["spec"]["ingress"] for port in rule["ports"]
        ),
        "autoscaler.yaml: the Deployment": (target["kind"], target["name"]) == ("Deployment", deployment["metadata"]["name"]),
        "autoscaler.yaml: two instances at least": 2 <= scaler["minReplicas"] < scaler["maxReplicas"],
        "autoscaler.yaml: the metric of prometheus-adapter.yaml": f"as: {metric['external']['metric']['name']} " in adapter,
    }
    return [f"{place.split(': ')[0]}: wants {place.split(': ')[1]}" for place, kept in rules.items() if not kept]
