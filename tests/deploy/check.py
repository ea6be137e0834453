"""Checks the files of deploy/ against what reads them: schemas of Kubernetes, the shape of compose files, rules for the image, systemd
itself where it is there, and the names of metrics and of settings.

    check.py ROOT             what is wrong, a line each; the exit code is 1 where anything is
    check.py ROOT --plant     each fault of plant.py is planted in a copy, and must be found
    check.py ROOT --settings  what each file sets, as JSON: by file and service, variables with their values
"""

import json
import sys
from pathlib import Path

import alone
import container
import dashboards
import kubernetes
import plant
import settings
import unit

CHECKS = [
    ("unit", unit.check),
    ("image", container.check_image),
    ("health", container.check_health_command),
    ("compose", container.check_compose),
    ("proxy", container.check_proxy),
    ("alone", alone.check),
    ("kubernetes", kubernetes.check),
    ("metrics", dashboards.check),
    ("settings", settings.check),
]


def faults(root):
    """All that is wrong, as `check: place: what would be right`."""
    return [f"{name}: {fault}" for name, check in CHECKS for fault in check(root)]


def main(arguments):
    root = Path(arguments[0]).resolve()
    if arguments[1:] == ["--plant"]:
        missed = plant.missed(root, dict(CHECKS))
        print("\n".join(missed) or f"{len(plant.planted())} of {len(plant.FAULTS)} planted faults were found")
        return 1 if missed else 0
    if arguments[1:] == ["--settings"]:
        print(json.dumps(settings.environments(root)))
        return 0
    found = faults(root)
    print("\n".join(found) or f"{len(CHECKS)} checks passed")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
