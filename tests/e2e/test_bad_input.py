"""Bad input gets a named error with a hint, and nothing else stops."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from cdcworker.worker.devstack.ports import free_ports
from cdcworker.worker.devstack.postgres import EmbeddedPostgres

from tests import plain_http

from .cluster import Cluster

pytestmark = [pytest.mark.kafka, pytest.mark.postgres, pytest.mark.timeout(300), pytest.mark.sampled(2, "input")]

COMMAND = str(Path(sys.executable).parent / "cdcworker")


@pytest.fixture(scope="module")
def cluster(kafka, postgres, tmp_path_factory) -> Iterator[Cluster]:
    found = Cluster(kafka, postgres, tmp_path_factory.mktemp("bad-input"))
    with psycopg.connect(postgres.dsn(found.source_db)) as connection:
        connection.execute("create table orders (id int primary key)")
    try:
        found.start_worker()
        found.submit("good", config(found))
        found.owner("good")
        yield found
        found.owner("good")
    finally:
        found.stop()


def config(cluster: Cluster, **changes: str) -> dict[str, str]:
    name = f"{cluster.group.replace('-', '_')}"
    base = {
        "connector.class": "postgres",
        **cluster.connection("database", cluster.source_db),
        "topic.prefix": cluster.group,
        "slot.name": name,
        "publication.name": name,
        "table.include.list": "public.orders",
    }
    return base | {key.replace("__", "."): value for key, value in changes.items()}


def refused(cluster: Cluster, submitted: dict[str, str]) -> dict[str, Any]:
    answer = cluster.rest("POST", "/connectors?details=true", {"name": "bad", "config": submitted})
    assert answer.status_code == 400, answer.text
    body: dict[str, Any] = answer.json()
    assert body["error_code"] == 400
    for secret in (submitted.get("database.password", ""), "wrong-secret"):
        assert not secret or secret not in answer.text
    assert cluster.rest("GET", "/connectors/bad").status_code == 404
    return body


def test_an_unknown_key_is_refused_with_the_nearest_match(cluster: Cluster) -> None:
    assert "table.include.list" in refused(cluster, config(cluster, table__include__lst="public.orders"))["message"]


def test_a_wrong_password_is_refused_by_name(cluster: Cluster) -> None:
    body = refused(cluster, config(cluster, database__password="wrong-secret", slot__name="bad"))
    assert "postgres." in json.dumps(body)
    assert "password" in body["message"].lower()


def test_a_missing_table_is_refused_by_name(cluster: Cluster) -> None:
    body = refused(cluster, config(cluster, table__include__list="public.nowhere", slot__name="bad"))
    assert "nowhere" in body["message"]


def test_a_server_that_cannot_be_reached_is_refused_by_name(cluster: Cluster) -> None:
    (port,) = free_ports(1)
    body = refused(cluster, config(cluster, database__port=str(port), slot__name="bad"))
    assert "postgres." in json.dumps(body)


def test_a_server_without_logical_decoding_is_refused_with_the_setting(cluster: Cluster, tmp_path: Path) -> None:
    tmp_path.chmod(0o711)
    with EmbeddedPostgres(tmp_path / "replica", {"wal_level": "replica", "max_wal_senders": "2"}) as server:
        database = server.create_database()
        with psycopg.connect(server.dsn(database)) as connection:
            connection.execute("create table orders (id int primary key)")
        info = psycopg.conninfo.conninfo_to_dict(server.dsn(database))
        changed = {"database.port": str(info["port"]), "database.password": str(info["password"])}
        changed |= {"database.dbname": database, "slot.name": "bad"}
        assert "wal_level" in refused(cluster, config(cluster) | changed)["message"]


def test_broken_json_says_where(cluster: Cluster) -> None:
    (worker,) = cluster.workers.values()
    headers = {"Content-Type": "application/json"}
    answer = plain_http.post(worker.url + "/connectors", content='{"name": "x",\n "config": {', headers=headers)
    assert answer.status_code == 400
    assert "line 2" in answer.json()["message"]


def test_a_worker_without_kafka_ends_with_a_named_error(tmp_path: Path) -> None:
    (port, listener) = free_ports(2)
    path = tmp_path / "worker.properties"
    path.write_text(f"bootstrap.servers=127.0.0.1:{port}\ngroup.id=x\nlisteners=http://127.0.0.1:{listener}\n")
    done = subprocess.run(
        [COMMAND, "start", "--config", str(path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 3
    assert "kafka.unreachable" in done.stderr + done.stdout
    assert "Traceback" not in done.stderr + done.stdout


def test_a_worker_with_a_broken_config_ends_with_a_named_error(tmp_path: Path) -> None:
    path = tmp_path / "worker.properties"
    path.write_text("bootstrap.servers=127.0.0.1:1\nsession.timeout.ms=soon\n")
    done = subprocess.run(
        [COMMAND, "start", "--config", str(path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert "session.timeout.ms" in done.stderr + done.stdout
    assert "Traceback" not in done.stderr + done.stdout
