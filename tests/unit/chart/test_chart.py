"""The chart makes what the Kustomize base makes, and its values have a schema; where helm is, it judges itself."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from cdcworker.worker.config.worker_properties import parse, read_properties

from .gotemplate import TemplateError
from .render import CASES, CHART, ROOT, TEMPLATES, VALUES, Json, by_helm, helm, merged, objects, renderer

HELM = helm()
KUBECTL = shutil.which("kubectl")
SCHEMA: Json = json.loads((CHART / "values.schema.json").read_text())
CUSTOM: Json = json.loads(Path(__file__).with_name("custom.json").read_text())
ADDED = ("app.kubernetes.io/instance", "app.kubernetes.io/version", "app.kubernetes.io/managed-by")

needs_helm = pytest.mark.skipif(HELM is None, reason="missing part helm: not installed (make tools)")
needs_kubectl = pytest.mark.skipif(KUBECTL is None, reason="missing part kubectl: not installed")


def leaves(values: Any, path: str = "") -> dict[str, Any]:
    """Every key of the values that is no table of tables, by its path."""
    if isinstance(values, dict) and values:
        return {k: v for name, inner in values.items() for k, v in leaves(inner, f"{path}.{name}").items()}
    return {path: values}


def named() -> set[str]:
    """Paths under .Values that the templates name."""
    return set(re.findall(r"(?:\$|\.root|(?<=[\s(]))\.Values((?:\.[A-Za-z]+)+)", "\n".join(TEMPLATES.values())))


# -- values -----------------------------------------------------------------------------------------------------------


def test_the_schema_is_one_and_takes_the_defaults_and_every_case() -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    for given in CASES.values():
        jsonschema.validate(merged(VALUES, given), SCHEMA, jsonschema.Draft7Validator)


@pytest.mark.parametrize(
    "given",
    [
        {"replicas": 3},
        {"replicaCount": "3"},
        {"image": {"pullPolicy": "Sometimes"}},
        {"config": {"offset.storage.partitions": 25}},
        {"config": {"log.level": "INFO\nlisteners=http://0.0.0.0:1"}},
        {"tls": {"secret": "Not A Name"}},
        {"secrets": [{"name": "../etc", "secret": "s"}]},
        {"terminationGracePeriodSeconds": 5},
        {"scratch": {"state": "20 GB"}},
        {"autoscaling": {"enabled": True, "tasksPerWorker": 0}},
    ],
    ids=json.dumps,
)
def test_the_schema_refuses(given: Json) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(merged(VALUES, given), SCHEMA, jsonschema.Draft7Validator)


def test_schema_and_values_have_the_same_keys() -> None:
    def compare(schema: Json, values: Json, path: str) -> None:
        assert set(schema["properties"]) - {"global"} == set(values), path
        for name, inner in schema["properties"].items():
            if inner.get("additionalProperties") is False and "properties" in inner:
                compare(inner, values[name], f"{path}.{name}")

    compare(SCHEMA, VALUES, "")


def test_templates_name_values_that_exist_and_every_value_is_named() -> None:
    known = leaves(VALUES)
    assert named()
    assert [path for path in named() if not any(key == path or key.startswith(path + ".") for key in known)] == []
    assert [key for key in known if not any(key == path or key.startswith(path + ".") for path in named())] == []


def test_templates_name_helpers_and_files_that_exist() -> None:
    text = "\n".join(TEMPLATES.values())
    assert set(re.findall(r'include "([^"]+)"', text)) == set(re.findall(r'define "([^"]+)"', text))
    found = re.findall(r'\.Files\.Get "([^"]+)"', text)
    assert sorted(found) == sorted(str(path.relative_to(CHART)) for path in (CHART / "files").iterdir())


def test_the_versions_are_the_packages() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (version, version)


@pytest.mark.parametrize("wrong", ["{{ .Values.nothing }}", "{{ unknown 1 }}", "{{- if true }}", "{{ .Values.kafka }}"])
def test_a_template_that_helm_would_refuse_is_refused_here_too(wrong: str) -> None:
    from .gotemplate import Renderer

    with pytest.raises(TemplateError):
        Renderer({"wrong.yaml": wrong}, {"Values": VALUES}).render("wrong.yaml")


def test_a_cluster_that_is_open_to_everybody_is_refused() -> None:
    with pytest.raises(TemplateError, match="anybody could create connectors"):
        objects({"networkPolicy": {"enabled": False}, "auth": {"open": True}})
    assert objects({"networkPolicy": {"enabled": False}, "auth": {"usersSecret": "users"}})


@pytest.mark.parametrize("given", [{}, {"tls": {"secret": "cdcworker-tls"}}, {"auth": {"usersSecret": ""}}])
def test_nothing_is_made_without_users_unless_it_is_opened_by_name(given: Json) -> None:
    with pytest.raises(TemplateError, match=r"auth\.open=true"):
        objects(given)
    assert objects(merged(given, {"auth": {"open": True}}))


def test_the_notes_name_the_way_in() -> None:
    assert "https://localhost:8083" in renderer(CASES["closed"]).render("NOTES.txt")
    assert "REST knows no users" in renderer(CASES["open"]).render("NOTES.txt")


def test_the_notes_say_that_a_secret_between_workers_is_missing() -> None:
    missing = merged(CASES["default"], {"auth": {"interWorkerSecret": ""}})
    assert "auth.interWorkerSecret" in renderer(missing).render("NOTES.txt")
    assert "auth.interWorkerSecret" not in renderer(CASES["default"]).render("NOTES.txt")
    (pod,) = [one for one in objects(missing) if one["kind"] == "StatefulSet"]
    assert "inter-worker" not in json.dumps(pod)


# -- what it makes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_each_object_is_valid_kubernetes(case: str) -> None:
    for found in made(case):
        if found["kind"] in CUSTOM:
            jsonschema.validate(found, CUSTOM[found["kind"]], jsonschema.Draft7Validator)
        else:
            kubernetes_validate.validate(found, "1.31", strict=True)


def test_a_misspelt_field_of_an_operators_object_would_be_found() -> None:
    (broken,) = [found for found in made("everything") if found["kind"] == "ServiceMonitor"]
    broken["spec"]["endpoints"][0]["intervall"] = "15s"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(broken, CUSTOM["ServiceMonitor"], jsonschema.Draft7Validator)


def made(case: str) -> list[Json]:
    return objects(CASES[case])


def plain(found: list[Json]) -> dict[tuple[str, str], Json]:
    """Without what helm alone adds, properties as properties; lists of Kubernetes that are maps, in order."""

    def strip(value: Any) -> Any:
        if isinstance(value, dict):
            kept = {name: strip(inner) for name, inner in value.items() if name not in (*ADDED, "checksum/config")}
            return {
                name: inner for name, inner in kept.items() if not (name in ("labels", "annotations") and not inner)
            }
        if isinstance(value, list):
            return sorted((strip(item) for item in value), key=lambda item: json.dumps(item, sort_keys=True))
        return value

    out = {}
    for one in found:
        if one["kind"] == "ConfigMap" and "worker.properties" in one["data"]:
            one["data"]["worker.properties"] = dict(read_properties(one["data"]["worker.properties"]))
        one.setdefault("metadata", {}).setdefault("labels", {}).setdefault("app.kubernetes.io/name", "cdcworker")
        out[one["kind"], one["metadata"]["name"]] = strip(one)
    return out


def kustomized(folder: str) -> list[Json]:
    argv = [str(KUBECTL), "kustomize", str(ROOT / "k8s" / folder)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [found for found in yaml.safe_load_all(done.stdout) if found and found["kind"] != "Namespace"]


def base() -> list[Json]:
    names = yaml.safe_load((ROOT / "k8s" / "base" / "kustomization.yaml").read_text())["resources"]
    found = [d for name in names for d in yaml.safe_load_all((ROOT / "k8s" / "base" / name).read_text()) if d]
    return [document for document in found if document["kind"] != "Namespace"]


def without_pull_policy(made: dict[tuple[str, str], Json]) -> dict[tuple[str, str], Json]:
    for (kind, _), found in made.items():
        if kind == "StatefulSet":
            assert found["spec"]["template"]["spec"]["containers"][0].pop("imagePullPolicy") == "IfNotPresent"
    return made


def test_with_users_it_makes_what_the_kustomize_base_makes() -> None:
    assert without_pull_policy(plain(made("default"))) == plain(base())


@needs_kubectl
def test_opened_it_makes_what_the_open_overlay_makes() -> None:
    assert without_pull_policy(plain(made("open"))) == plain(kustomized("overlays/open"))


@needs_kubectl
def test_with_users_and_tls_it_makes_what_the_closed_overlay_makes() -> None:
    assert without_pull_policy(plain(made("closed"))) == plain(kustomized("overlays/closed"))


@pytest.mark.parametrize("case", CASES)
def test_a_worker_takes_the_properties_that_the_chart_makes(case: str) -> None:
    (text,) = [
        found["data"]["worker.properties"] for found in made(case) if "worker.properties" in found.get("data", ())
    ]
    config, warnings = parse({**read_properties(text), "rest.advertised.host.name": "pod"})
    plain_text = "credentials come over the network in the clear"
    expected = {"closed": [], "default": [plain_text]}.get(case, ["rest.insecure.bind"])
    assert [warning.partition(":")[0].partition(" is")[0] for warning in warnings] == expected
    assert config.group_id == {"everything": "shop"}.get(case, "cdcworker")


@pytest.mark.parametrize("case", CASES)
def test_pods_are_within_the_restricted_standard(case: str) -> None:
    (pod,) = [found["spec"]["template"]["spec"] for found in made(case) if found["kind"] == "StatefulSet"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
    for container in pod["containers"]:
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert context["readOnlyRootFilesystem"] is True
        assert "memory" in container["resources"]["limits"]
    assert {kind for volume in pod["volumes"] for kind in volume if kind != "name"} <= {
        "configMap",
        "secret",
        "emptyDir",
    }


def test_everything_that_can_be_asked_for_is_there() -> None:
    found = {kind: made for (kind, name), made in plain(made("everything")).items() if name == "changes"}
    assert {"ServiceMonitor", "PrometheusRule", "ScaledObject"} <= found.keys()
    rules = yaml.safe_load((ROOT / "k8s" / "monitoring" / "rules.yaml").read_text())
    assert found["PrometheusRule"]["spec"] == plain([rules])["PrometheusRule", "cdcworker"]["spec"]
    assert "replicas" not in found["StatefulSet"]["spec"], "the autoscaler's number would be reset by each upgrade"
    assert found["ScaledObject"]["spec"]["scaleTargetRef"]["name"] == "changes"
    pod = found["StatefulSet"]["spec"]["template"]["spec"]
    assert {"name": "secret-shop", "mountPath": "/run/secrets/shop", "readOnly": True} in pod["containers"][0][
        "volumeMounts"
    ]
    peers = found["NetworkPolicy"]["spec"]["ingress"][0]["from"]
    assert {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}} in peers
    board = next(m for (kind, name), m in plain(made("everything")).items() if name == "changes-board")
    assert json.loads(board["data"]["board.json"])["title"] == "cdcworker"


@needs_kubectl
def test_the_components_fit_the_base(tmp_path: Any) -> None:
    shutil.copytree(ROOT / "k8s", tmp_path / "k8s")
    (tmp_path / "k8s" / "overlays" / "all").mkdir()
    text = "kind: Kustomization\nnamespace: cdcworker\nresources: [../../base]\n"
    text += "components: [../../monitoring, ../../scaling]\n"
    (tmp_path / "k8s" / "overlays" / "all" / "kustomization.yaml").write_text(text)
    argv = [str(KUBECTL), "kustomize", str(tmp_path / "k8s" / "overlays" / "all")]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    built = [found for found in yaml.safe_load_all(done.stdout) if found]
    scaled = next(found for found in built if found["kind"] == "ScaledObject")
    ours = plain(made("everything"))["ScaledObject", "changes"]
    assert "replicas" not in next(found for found in built if found["kind"] == "StatefulSet")["spec"]
    assert plain([scaled])["ScaledObject", "cdcworker"]["spec"]["triggers"] == ours["spec"]["triggers"]
    for found in built:
        if found["kind"] in CUSTOM:
            jsonschema.validate(found, CUSTOM[found["kind"]], jsonschema.Draft7Validator)


# -- helm itself ------------------------------------------------------------------------------------------------------


@needs_helm
@pytest.mark.parametrize("case", CASES)
def test_helm_makes_the_same(case: str) -> None:
    done = by_helm(str(HELM), CASES[case])
    assert done.returncode == 0, done.stderr
    key = json.dumps
    assert sorted(map(key, filter(None, yaml.safe_load_all(done.stdout)))) == sorted(map(key, made(case)))


@needs_helm
def test_helm_finds_nothing_to_complain_about() -> None:
    done = subprocess.run([str(HELM), "lint", "--strict", str(CHART)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_helm
@pytest.mark.parametrize(
    "wrong", ["replicaCount=three", "replicas=3", "auth.usersSecret=", "networkPolicy.enabled=false,auth.open=true"]
)
def test_helm_refuses(wrong: str) -> None:
    done = by_helm(str(HELM), {}, "--set", wrong)
    assert done.returncode != 0
    assert wrong.partition("=")[0].partition(".")[0] in done.stderr
