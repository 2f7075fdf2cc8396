"""The image's steps: what is copied is there, what is started exists, and the whole compose file resolves."""

from __future__ import annotations

import re
import tomllib

import pytest
import yaml
from cdcworker.worker.config.worker_properties import WORKER_DEF
from cdcworker.worker.server.application import ENDPOINTS

from tests.unit.house import dockerfile as docker

STAGES = docker.stages((docker.ROOT / "Dockerfile").read_text())
FILES = set(docker.context())
PROJECT = tomllib.loads((docker.ROOT / "pyproject.toml").read_text())
COMPOSE = yaml.safe_load((docker.ROOT / "docker-compose.yml").read_text())


def test_every_source_of_a_copy_is_in_the_context_of_a_clean_checkout():
    sources = [step.rest.split() for stage in STAGES.values() for step in stage.steps if step.word == "COPY"]
    assert sources
    for *flags, source, _ in sources:
        assert flags or docker.copied(source, FILES), f"COPY {source}: nothing of it is tracked, or all is ignored"


def test_what_the_package_is_built_of_is_not_ignored():
    wanted = {"pyproject.toml", "setup.py", "README.md", "locks/build.txt", "locks/worker.txt", "locks/spark.txt"}
    for package in PROJECT["tool"]["setuptools"]["packages"]:
        wanted.add("/".join((*package.split(".")[1:], "__init__.py")) if "." in package else "")
    tracked = {name for name in wanted if name and (docker.ROOT / name).exists()}
    assert tracked <= FILES
    assert not [name for name in FILES if name.startswith((".git/", ".venv/")) or "__pycache__" in name]


@pytest.mark.parametrize(("name", "taken"), [
    (".git/config", False), ("a/b/__pycache__/c.pyc", False), ("connectors/postgres/decode/_core.so", False),
    ("tests/results/x.json", False), ("connectors/postgres/decode/_core.pyx", True), (".gitignore", True),
])  # fmt: skip
def test_the_ignore_file_is_read_as_docker_reads_it(name, taken):
    patterns = (docker.ROOT / ".dockerignore").read_text().split()
    assert any(docker._ignored(name, pattern) for pattern in patterns) != taken


@pytest.mark.parametrize("target", ["worker", "spark"])
def test_what_is_started_and_what_is_asked_for_health_exist(target):
    steps = docker.all_steps(STAGES, target)
    (entry,) = [step.words() for step in steps if step.word == "ENTRYPOINT"]
    (health,) = [step for step in steps if step.word == "HEALTHCHECK"]
    (port,) = [step.rest for step in steps if step.word == "EXPOSE"]
    assert entry[0] in PROJECT["project"]["scripts"]
    variables = docker.variables(steps)
    path = variables["HEALTH_URL"].removeprefix(f"http://127.0.0.1:{port}")
    assert path in {endpoint.path for endpoint in ENDPOINTS if endpoint.role == "open"}
    compile(health.words()[-1], "HEALTHCHECK", "exec")
    assert port == WORKER_DEF.keys["listeners"].default.rpartition(":")[2]


def test_every_variable_of_a_worker_is_a_property():
    for name, service in COMPOSE["services"].items():
        for variable in service.get("environment", {}) if name.startswith("worker-") else ():
            key = variable.removeprefix("CDC_").lower().replace("_", ".")
            assert key in WORKER_DEF.keys, f"{name}: {variable}"


def test_ports_hosts_and_health_of_the_compose_file_fit_each_other():
    services = COMPOSE["services"]
    published = [port for service in services.values() for port in service.get("ports", ())]
    assert all(port.startswith("127.0.0.1:") for port in published)
    assert len({port.split(":")[1] for port in published}) == len(published)
    listening = {"postgres": "5432", "kafka": "9092", "worker-1": "8083", "worker-2": "8083"}
    text = (docker.ROOT / "docker-compose.yml").read_text()
    for host, port in re.findall(r"(?://|@|[ ,=])(postgres|kafka|worker-[12]):(\d{4,5})", text):
        assert port == listening[host] or (host, port) == ("kafka", "9093"), f"{host}:{port}"
    for name, service in services.items():
        for other, wanted in service.get("depends_on", {}).items():
            assert wanted["condition"] == "service_healthy"
            assert "test" in services[other]["healthcheck"], (
                f"{name} waits for {other}, which says nothing of its health"
            )
    assert services["load"]["healthcheck"] == {"disable": True}, "the image's own asks a worker, which that is not"
    assert not re.search(r"\$\{?\w+", text), "a variable that nobody sets"
    for item in services["postgres"]["configs"]:
        assert item["source"] in COMPOSE["configs"]


def test_a_step_that_is_not_known_is_a_mistake():
    with pytest.raises(AssertionError):
        docker.stages("FROM a AS b\nRUM true\n")
