"""The chart with values, rendered by helm where it is installed and by `gotemplate` everywhere."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from .gotemplate import Renderer

Json = dict[str, Any]
ROOT = Path(__file__).resolve().parents[3]
CHART = ROOT / "k8s" / "helm" / "cdcworker"
TEMPLATES = {path.name: path.read_text() for path in sorted((CHART / "templates").iterdir())}
VALUES: Json = yaml.safe_load((CHART / "values.yaml").read_text())

KNOWN: Json = {"usersSecret": "cdcworker-users", "interWorkerSecret": "cdcworker-inter-worker"}
"""Secrets with which REST knows its callers, and workers know each other."""

CASES: dict[str, Json] = {
    "default": {"auth": KNOWN},
    "open": {"auth": {"open": True}},
    "closed": {
        "auth": KNOWN,
        "tls": {"secret": "cdcworker-tls"},
        "config": {"audit.topic": "cdcworker.audit"},
        "networkPolicy": {
            "egress": [
                {
                    "to": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kafka"}}}],
                    "ports": [{"port": 9092, "protocol": "TCP"}],
                },
                {"ports": [{"port": 5432, "protocol": "TCP"}]},
            ]
        },
    },
    "everything": {
        "fullnameOverride": "changes",
        "groupId": "shop",
        "auth": {"open": True},
        "image": {"tag": "1.2.3-spark", "repository": "registry.example.org/cdcworker"},
        "imagePullSecrets": [{"name": "pull"}],
        "config": {"log.level": "DEBUG", "worker.capacity": "2"},
        "secrets": [{"name": "shop", "secret": "shop-database"}],
        "env": [{"name": "SHOP_PASSWORD", "valueFrom": {"secretKeyRef": {"name": "shop", "key": "password"}}}],
        "envFrom": [{"secretRef": {"name": "kafka-login"}}],
        "podAnnotations": {"example.org/team": "data"},
        "nodeSelector": {"example.org/pool": "cdc"},
        "tolerations": [{"key": "cdc", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "networkPolicy": {"from": [{"namespaceSelector": {"matchLabels": {"example.org/ops": "true"}}}]},
        "monitoring": {"serviceMonitor": True, "rules": True, "board": True, "tokenSecret": "metrics"},
        "tls": {"secret": "cdcworker-tls"},
        "autoscaling": {"enabled": True},
    },
}


def merged(base: Json, over: Mapping[str, Any]) -> Json:
    out = dict(base)
    for name, value in over.items():
        both = isinstance(value, dict) and isinstance(base.get(name), dict)
        out[name] = merged(base[name], value) if both else value
    return out


def renderer(given: Json) -> Renderer:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    root = {
        "Values": merged(VALUES, given),
        "Release": {"Name": "cdcworker", "Namespace": "cdcworker", "Service": "Helm"},
        "Chart": {"AppVersion": chart["appVersion"], "Name": chart["name"], "Version": chart["version"]},
        "Files": {"Get": lambda name: (CHART / name).read_text()},
    }
    return Renderer(TEMPLATES, root)


def objects(given: Json) -> list[Json]:
    """What the chart makes of these values."""
    found = renderer(given)
    texts = [found.render(name) for name in TEMPLATES if name.endswith(".yaml")]
    return [document for text in texts for document in yaml.safe_load_all(text) if document]


def helm() -> str | None:
    """On the path, or where `go install` puts it."""
    folder = os.environ.get("GOBIN") or str(Path(os.environ.get("GOPATH") or Path.home() / "go") / "bin")
    return shutil.which("helm") or shutil.which("helm", path=folder)


def by_helm(program: str, given: Json, *more: str) -> subprocess.CompletedProcess[str]:
    place = ["--namespace", "cdcworker"]
    argv = [program, "template", "cdcworker", str(CHART), *place, "--values", "-", *more]
    return subprocess.run(argv, input=yaml.safe_dump(given), capture_output=True, text=True, check=False)
