"""The Kubernetes manifests and the compose file validate offline, and agree with the product."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from cdcworker.worker.config.worker_properties import parse, read_properties

ROOT = Path(__file__).resolve().parents[3]
KUBECTL = shutil.which("kubectl")
MANIFESTS = sorted(p for p in (ROOT / "k8s" / "base").glob("*.yaml") if p.name != "kustomization.yaml")


def documents(path: Path) -> list[dict[str, Any]]:
    return [d for d in yaml.safe_load_all(path.read_text()) if d]


def stateful_set() -> dict[str, Any]:
    (found,) = documents(ROOT / "k8s" / "base" / "statefulset.yaml")
    return found


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda p: p.name)
def test_each_manifest_is_valid_kubernetes(path: Path) -> None:
    for document in documents(path):
        kubernetes_validate.validate(document, "1.31", strict=True)


def test_a_misspelt_field_would_be_found() -> None:
    broken = stateful_set()
    broken["spec"]["replicaz"] = 1
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, "1.31", strict=True)


@pytest.mark.parametrize("folder", ["base", "overlays/dev", "overlays/closed", "overlays/open"])
def test_a_kustomization_names_files_that_exist(folder: str) -> None:
    (kustomization,) = documents(ROOT / "k8s" / folder / "kustomization.yaml")
    for name in kustomization["resources"]:
        assert (ROOT / "k8s" / folder / name).exists()
    if folder == "base":
        assert sorted(kustomization["resources"]) == [p.name for p in MANIFESTS]


def patches(overlay: str) -> list[dict[str, Any]]:
    (kustomization,) = documents(ROOT / "k8s" / "overlays" / overlay / "kustomization.yaml")
    return [yaml.safe_load(item["patch"]) for item in kustomization["patches"]]


def test_the_base_knows_its_callers_and_only_overlays_that_say_so_are_open() -> None:
    (config_map,) = documents(ROOT / "k8s" / "base" / "configmap.yaml")
    given = read_properties(config_map["data"]["worker.properties"])
    assert "rest.insecure.bind" not in given
    parse({**given, "rest.advertised.host.name": "pod"})
    pod = stateful_set()["spec"]["template"]["spec"]
    for name in ("rest.auth.file", "inter.worker.secret.file"):
        mounts = pod["containers"][0]["volumeMounts"]
        (mount,) = [mount for mount in mounts if given[name].startswith(f"{mount['mountPath']}/")]
        (volume,) = [volume for volume in pod["volumes"] if volume["name"] == mount["name"]]
        assert "optional" not in volume["secret"], f"without {name} a pod does not start"
    text = {path.parent.name: path.read_text() for path in (ROOT / "k8s" / "overlays").glob("*/kustomization.yaml")}
    assert {name for name, found in text.items() if "rest.insecure.bind=true" in found} == {"open", "dev"}


def test_the_stateful_set_drains_through_a_headless_service() -> None:
    spec = stateful_set()["spec"]
    services = {d["metadata"]["name"]: d for d in documents(ROOT / "k8s" / "base" / "service.yaml")}
    assert services[spec["serviceName"]]["spec"]["clusterIP"] == "None"
    assert services[spec["serviceName"]]["spec"]["publishNotReadyAddresses"] is True
    (container,) = spec["template"]["spec"]["containers"]
    assert "lifecycle" not in container, "a hook would need a token"
    _, patch = patches("open")
    (opened,) = patch["spec"]["template"]["spec"]["containers"]
    assert "/v1/drain" in opened["lifecycle"]["preStop"]["exec"]["command"][-1]
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert spec["template"]["spec"]["terminationGracePeriodSeconds"] >= 45


def test_the_closed_overlay_is_what_a_worker_takes_and_mounts_what_it_names() -> None:
    (kustomization,) = documents(ROOT / "k8s" / "overlays" / "closed" / "kustomization.yaml")
    config_map, patch, policy = (yaml.safe_load(item["patch"]) for item in kustomization["patches"])
    given = read_properties(config_map["data"]["worker.properties"])
    config, warnings = parse({**given, "rest.advertised.host.name": "pod"})
    assert config.url == "https://pod:8083"
    assert not warnings
    assert "rest.insecure.bind" not in given
    assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
    pod = patch["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    assert {volume["name"] for volume in pod["volumes"]} == set(mounts.values())
    for value in given.values():
        if value.startswith("/"):
            assert value.rpartition("/")[0] in mounts, value
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        base = stateful_set()["spec"]["template"]["spec"]["containers"][0][probe]["httpGet"]
        assert container[probe]["httpGet"] == {**base, "scheme": "HTTPS"}


def test_the_compose_file_is_valid() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", "docker-compose.yml"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_compose_services_depend_on_services_that_exist() -> None:
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    names = set(compose["services"])
    assert {"postgres", "kafka", "worker-1", "worker-2", "load"} <= names
    for service in compose["services"].values():
        assert set(service.get("depends_on", {})) <= names
    assert json.dumps(compose)


def test_the_monitor_asks_every_worker_once() -> None:
    (monitor,) = documents(ROOT / "k8s" / "monitoring" / "servicemonitor.yaml")
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    services = documents(ROOT / "k8s" / "base" / "service.yaml")
    (asked,) = [service for service in services if wanted <= service["metadata"]["labels"].items()]
    assert asked["spec"]["clusterIP"] == "None", "behind an address of the cluster each question goes to anybody"
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["port"] in {port["name"] for port in asked["spec"]["ports"]}


@pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed: overlays are not built")
def test_the_monitoring_component_fits_an_overlay(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "k8s", tmp_path / "k8s")
    overlay = tmp_path / "k8s" / "overlays" / "dev" / "kustomization.yaml"
    overlay.write_text(overlay.read_text() + "components: [../../monitoring]\n")
    argv = [str(KUBECTL), "kustomize", str(overlay.parent)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    built = {(d["kind"], d["metadata"]["name"]): d for d in yaml.safe_load_all(done.stdout)}
    assert {"PrometheusRule", "ServiceMonitor", "StatefulSet"} <= {kind for kind, _ in built}
    assert json.loads(built["ConfigMap", "cdcworker-board"]["data"]["board.json"])["title"] == "cdcworker"
    peers = built["NetworkPolicy", "cdcworker"]["spec"]["ingress"][0]["from"]
    assert any("namespaceSelector" in peer for peer in peers)
