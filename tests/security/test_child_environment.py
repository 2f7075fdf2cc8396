"""What a worker's environment holds for itself is not in that of its children, and Java's has no secret at all."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys

import pytest
from cdcworker.connectors import class_archive
from cdcworker.connectors.config import worker_logins
from cdcworker.connectors.config.inherited_variables import MORE
from cdcworker.connectors.config.worker_logins import NOWHERE
from cdcworker.connectors.spark.runtime import java_gateway
from cdcworker.connectors.spark.runtime.session import settings
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.config import task_environment
from cdcworker.worker.config.config_providers import resolve
from cdcworker.worker.config.worker_properties import parse
from cdcworker.worker.java import ivy, runtime

OWN = {
    "CDC_LISTENERS_HTTPS_SSL_KEY_PASSWORD": "canary-key-password",
    "CDC_SASL_PASSWORD": "canary-kafka-login",
    "CDC_REST_OIDC_CLIENT_SECRET": "canary-client",
    "CONNECT_SASL_JAAS_CONFIG": "canary-jaas",
    "CONNECT_SSL_KEY_PASSWORD": "canary-connect",
    "AWS_SECRET_ACCESS_KEY": "canary-cloud",
    "GITHUB_TOKEN": "canary-token",
    "DATABASE_URL": "postgresql://u:canary-url@h/d",
}
FOR_CONNECTORS = {"CDC_SECRET_SHOP": "canary-shop", "SHOP_PASSWORD": "canary-shop-password"}
OF_LIBPQ = {"PGSSLMODE": "require"}
OF_HADOOP = {
    "HADOOP_CREDSTORE_PASSWORD": "canary-credstore",
    "SPARK_X_SECRET": "canary-spark",
    "HADOOP_TOKEN": "canary-t",
}
OF_THE_MACHINE = {
    "PATH": os.environ["PATH"],
    "HADOOP_CONF_DIR": "/etc/hadoop",
    "HADOOP_TOKEN_FILE_LOCATION": "/run/tokens",
    "HOME": "/home/x",
    "LC_ALL": "C.UTF-8",
    "JAVA_TOOL_OPTIONS": "-Dx=y",
}
ALL = {**OWN, **OF_HADOOP, **FOR_CONNECTORS, **OF_LIBPQ, **OF_THE_MACHINE}
WORKER = {"bootstrap.servers": "k:1", "group.id": "g"}


@pytest.fixture
def environment(monkeypatch):
    for name in list(os.environ):
        monkeypatch.delenv(name)
    for name, value in ALL.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def started(monkeypatch):
    """The environments of the processes that were to be started."""
    found = []

    def popen(argv, **options):
        found.append(options.get("env"))
        raise FileNotFoundError(2, "not started")

    monkeypatch.setattr(subprocess, "Popen", popen)
    return found


def test_a_worker_keeps_to_itself_what_its_children_do_not_need(environment):
    task_environment.leave(parse(WORKER)[0])
    assert not (OWN | OF_HADOOP).keys() & os.environ.keys()
    assert {**FOR_CONNECTORS, **OF_LIBPQ, **OF_THE_MACHINE}.items() <= dict(os.environ).items()
    code = "import os, sys; sys.stdout.write(open('/proc/self/environ').read())"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "canary-shop" in said
    assert not [value for value in (OWN | OF_HADOOP).values() if value in said]


def test_what_references_may_read_is_what_the_operator_says(environment):
    pattern = {"config.providers.env.param.allowlist.pattern": "SHOP_.*"}
    task_environment.leave(parse({**WORKER, **pattern})[0])
    assert "SHOP_PASSWORD" in os.environ
    assert "CDC_SECRET_SHOP" not in os.environ


@pytest.mark.parametrize(
    "name",
    [
        "CDC_LISTENERS_HTTPS_SSL_KEY_PASSWORD",
        "CDC_SASL_PASSWORD",
        "CONNECT_SSL_KEY_PASSWORD",
        "HADOOP_CREDSTORE_PASSWORD",
    ],
)
def test_a_reference_reads_no_login_of_the_worker(environment, name):
    with pytest.raises(CdcError, match="not allowed"):
        resolve({"database.password": f"${{env:{name}}}"})
    assert resolve({"database.password": "${env:SHOP_PASSWORD}"})["database.password"] == "canary-shop-password"


def launch(tmp_path):
    worker_logins.use(are_open=False)
    java_gateway.JavaGateway("java", (), {"spark.master": "local[1]", **settings(tmp_path, 1)}, (), tmp_path)


def dump(tmp_path):
    archive = class_archive.ClassArchive(tmp_path, "java", (), ())
    archive._dump((tmp_path / "a", tmp_path / "b"), lambda: False, 0)


def ask(tmp_path):
    program = tmp_path / "java"
    program.touch(0o700)
    runtime.ask_version(program)


def fetch(tmp_path):
    ivy._run(["java"], 1, print)


@pytest.mark.parametrize("start", [launch, dump, ask, fetch])
def test_java_gets_no_secret(start, tmp_path, environment, started):
    with contextlib.suppress(CdcError, FileNotFoundError):
        start(tmp_path)
    (found,) = started
    assert found is not None, "it inherits everything"
    assert OF_THE_MACHINE.items() <= found.items()
    assert not (OWN | OF_HADOOP | FOR_CONNECTORS | OF_LIBPQ).keys() & found.keys()
    assert found.get("PGPASSFILE") == (NOWHERE if start is launch else None)


def test_an_operator_may_hand_on_more_also_to_java(environment, tmp_path, started, monkeypatch):
    monkeypatch.setenv(MORE, "")
    given = parse({**WORKER, "task.environment": "AWS_*, GITHUB_TOKEN, HADOOP_CREDSTORE_PASSWORD"})[0]
    task_environment.leave(given)
    assert os.environ[MORE] == "AWS_*,GITHUB_TOKEN,HADOOP_CREDSTORE_PASSWORD"
    assert os.environ["AWS_SECRET_ACCESS_KEY"] == "canary-cloud"
    with pytest.raises(CdcError):
        launch(tmp_path)
    (found,) = started
    assert {"AWS_SECRET_ACCESS_KEY", "GITHUB_TOKEN", "HADOOP_CREDSTORE_PASSWORD"} <= found.keys()
    assert "DATABASE_URL" not in found


@pytest.mark.parametrize("is_open", [False, True])
def test_the_password_of_libpqs_own_is_handed_on_only_where_connectors_may_use_it(environment, monkeypatch, is_open):
    monkeypatch.setenv("PGPASSWORD", "canary-libpq")
    pattern = {"config.providers.env.param.allowlist.pattern": "SHOP_.*"}
    given = {**WORKER, **pattern, worker_logins.PROPERTY: str(is_open).lower()}
    task_environment.leave(parse(given)[0])
    assert ("PGPASSWORD" in os.environ) == is_open


@pytest.mark.parametrize("name", ["*", "A B", "a=b", "", "-x"])
def test_names_of_variables_are_names(name):
    if name:
        with pytest.raises(CdcError, match=r"task\.environment"):
            parse({**WORKER, "task.environment": name})
    assert parse({**WORKER, "task.environment": ""})[0].values["task.environment"] == []
