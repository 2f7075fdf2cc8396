"""Terraform with the provider for Kafka Connect that is widely used (Mongey/kafka-connect), from create to destroy."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import uuid
from pathlib import Path

import pytest
import yaml
from cdcworker.coordinator.kafka.internal_topics import TopicNames
from cdcworker.worker.app import plan
from cdcworker.worker.devstack.ports import free_ports
from cdcworker.worker.herder.config import HerderConfig
from cdcworker.worker.herder.herder import Herder
from cdcworker.worker.rest.settings import ApiSettings, Protection
from cdcworker.worker.security.authenticate import Authenticator
from cdcworker.worker.security.credentials import hashed
from cdcworker.worker.security.gate import Gate
from cdcworker.worker.security.users import UserFile
from cdcworker.worker.server.application import create_app
from cdcworker.worker.server.server import RestServer

from tests import herders, plain_http
from tests.conftest import REQUIRE_PARTS
from tests.herders import eventually

pytestmark = pytest.mark.long

PROVIDER = "terraform-provider-kafka-connect"
TOKEN = f"cdc_{'a' * 12}_{'S' * 43}"
CONFIG = {
    "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
    "tasks.max": "1",
    "topic.prefix": "shop",
    "database.hostname": "127.0.0.1",
    "database.user": "shop",
    "database.dbname": "shop",
}


def program(name: str) -> str:
    """On the path, or where `go install` puts it."""
    folder = os.environ.get("GOBIN") or str(Path(os.environ.get("GOPATH") or Path.home() / "go") / "bin")
    found = shutil.which(name) or shutil.which(name, path=folder)
    if found is None:
        (pytest.fail if REQUIRE_PARTS else pytest.skip)(f"missing part terraform: {name} is not installed")
    return str(found)


@pytest.fixture
def cluster(tmp_path):
    """`cluster(as_written)` starts one worker with one admin and returns its URL."""
    users = tmp_path / "users.yaml"
    entry = {"name": "terraform", "grants": ["admin"], "tokens": [{"id": "a" * 12, "hash": hashed("S" * 43, log_n=10)}]}
    users.write_text(yaml.safe_dump({"users": [entry]}))
    users.chmod(0o600)
    authenticator, started = Authenticator(UserFile(users)), []

    def start(as_written: bool) -> str:
        (port,) = free_ports(1)
        url, group = f"http://127.0.0.1:{port}", f"tf-{uuid.uuid4().hex[:8]}"
        config = HerderConfig(
            {}, group, f"127.0.0.1:{port}", url, TopicNames.of_group(group), version="1", backend="memory"
        )
        herder = Herder(config, plan, herders.StubLauncher())
        settings = ApiSettings(
            protection=Protection(gate=Gate(authenticator)), live_checks=False, configs_as_written=as_written
        )
        server = RestServer(create_app(herder, settings=settings), "127.0.0.1", port)
        started.append((herder, server))
        herder.start()
        server.start()
        assert herder.wait_started(30)
        eventually(lambda: herder.view().is_leader)
        return url

    yield start
    for herder, server in started:
        server.stop()
        herder.stop()
    authenticator.close()


class Terraform:
    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url = folder, url
        provider = Path(program(PROVIDER)).parent
        folder.mkdir()
        (folder / "cli.tfrc").write_text(
            'provider_installation {\n  dev_overrides {\n    "Mongey/kafka-connect" = '
            f"{json.dumps(str(provider))}\n  }}\n}}\n"
        )

    def write(self, sensitive: dict[str, str], **config: str) -> None:
        # A reference in a text of Terraform begins with two dollar signs.
        texts = [json.dumps(each).replace("${", "$${") for each in ({**CONFIG, **config, "name": "shop"}, sensitive)]
        (self.folder / "main.tf").write_text(
            'terraform {\n  required_providers {\n    kafka-connect = { source = "Mongey/kafka-connect" }\n  }\n}\n'
            f'provider "kafka-connect" {{\n  url = "{self.url}"\n  headers = {{ Authorization = "Bearer {TOKEN}" }}\n}}\n'
            'resource "kafka-connect_connector" "shop" {\n  name = "shop"\n'
            f"  config = {texts[0]}\n  config_sensitive = {texts[1]}\n}}\n"
        )

    def run(self, *arguments: str) -> int:
        done = subprocess.run(
            [program("terraform"), *arguments, "-no-color", "-input=false"],
            cwd=self.folder, capture_output=True, text=True, timeout=300, check=False,
            env={**os.environ, "TF_CLI_CONFIG_FILE": str(self.folder / "cli.tfrc"), "CHECKPOINT_DISABLE": "1"},
        )  # fmt: skip
        assert done.returncode in (0, 2), done.stdout + done.stderr
        return done.returncode

    def apply(self) -> None:
        assert self.run("apply", "-auto-approve") == 0

    def has_changes(self) -> bool:
        return self.run("plan", "-detailed-exitcode") == 2


def stored(url: str) -> dict[str, str]:
    answer = plain_http.get(f"{url}/connectors/shop/config", headers={"Authorization": f"Bearer {TOKEN}"})
    return dict(answer.json()) if answer.status_code == 200 else {}


@pytest.mark.parametrize("where", ["config", "config_sensitive"])
def test_secrets_by_reference_are_created_changed_and_destroyed(cluster, tmp_path, where):
    program("terraform")
    url = cluster(as_written=False)
    terraform = Terraform(tmp_path / "tf", url)
    secret = {"database.password": "${env:SHOP_PASSWORD}"}
    plain, sensitive = (secret, {}) if where == "config" else ({}, secret)
    terraform.write(sensitive, **plain)
    assert terraform.has_changes()
    terraform.apply()
    assert stored(url) == {**CONFIG, **secret, "name": "shop"}
    assert not terraform.has_changes()
    terraform.write(sensitive, **plain, **{"table.include.list": "public.orders"})
    terraform.apply()
    assert stored(url)["table.include.list"] == "public.orders"
    assert not terraform.has_changes()
    assert terraform.run("destroy", "-auto-approve") == 0
    assert stored(url) == {}


def test_a_plain_secret_can_be_changed_where_admins_read_configs_as_written(cluster, tmp_path):
    program("terraform")
    url = cluster(as_written=True)
    terraform = Terraform(tmp_path / "tf", url)
    for password in ("first-hunter2", "second-hunter2"):
        terraform.write({"database.password": password})
        terraform.apply()
        assert stored(url)["database.password"] == password
        assert not terraform.has_changes()
    assert terraform.run("destroy", "-auto-approve") == 0
