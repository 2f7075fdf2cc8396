"""`cdcworker doctor` from the command line against real servers: what it applies, and what Kafka is told of."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from types import SimpleNamespace
from urllib.parse import unquote, urlsplit

import httpx
import psycopg
import pytest
from cdcworker.worker.cli.commands import doctor as command
from cdcworker.worker.cli.main import cli
from cdcworker.worker.diagnostics import doctor_kafka
from cdcworker.worker.diagnostics.examined_machine import DoctorMachine
from click.testing import CliRunner

PASSWORD = "reader-Pa55word"


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("CDC_URL", "CDC_CONTEXT"):
        monkeypatch.delenv(name, raising=False)


def run(*arguments, **options):
    return CliRunner().invoke(cli, ["doctor", *arguments], **options)


def checks(answer):
    return {row["check"]: row["severity"] for row in json.loads(answer.stdout)["result"]["checks"]}


@pytest.fixture
def database(postgres):
    name = postgres.create_database()
    yield name
    postgres.drop_database(name)


@pytest.fixture
def reader(postgres, database, monkeypatch):
    """A role without any right, its config as a file, and the administrator's connection string in a variable."""
    role = f"reader_{secrets.token_hex(4)}"
    with psycopg.connect(postgres.dsn(database), autocommit=True) as connection:
        connection.execute("create table item (id int primary key)")
        connection.execute(f"create role {role} login replication password '{PASSWORD}'")
        monkeypatch.setenv("ADMIN_DSN", postgres.dsn(database))
        monkeypatch.setenv("READER_PASSWORD", PASSWORD)
        yield role
        connection.execute(f"drop owned by {role}")
        connection.execute(f"drop role {role}")


@pytest.fixture
def config(postgres, database, reader):
    dsn = urlsplit(postgres.dsn(database))
    return {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "topic.prefix": "shop",
        "database.hostname": dsn.hostname,
        "database.port": str(dsn.port),
        "database.user": reader,
        "database.password": "${env:READER_PASSWORD}",
        "database.dbname": database,
        "slot.name": database,
        "table.include.list": "public.item",
        "publication.autocreate.mode": "disabled",
    }


@pytest.fixture
def file(tmp_path, config):
    path = tmp_path / "source.json"
    path.write_text(json.dumps({"name": "shop", "config": config}))
    return str(path)


@pytest.mark.postgres
def test_what_blocks_is_found_applied_on_request_and_then_nothing_blocks(file):
    before = run(file, "--json")
    assert before.exit_code == 1, before.output
    assert (checks(before)["rights.select"], checks(before)["publication.exists"]) == ("error", "error")
    # Its own role may not grant itself anything: that is said, and changes nothing.
    own = run(file, "--apply", "--yes", "--json")
    assert own.exit_code == 1
    assert {item["error"]["code"] for item in json.loads(own.stdout)["result"]["applied"]} == {
        "postgres.permission_denied"
    }
    applied = run(file, "--apply", "--yes", "--admin-dsn-env", "ADMIN_DSN", "--json")
    assert applied.exit_code == 0, applied.output
    result = json.loads(applied.stdout)["result"]
    assert [item["done"] for item in result["applied"]] == [True, True]
    assert run(file).exit_code == 0
    assert PASSWORD not in before.output + own.output + applied.output


@pytest.mark.postgres
def test_each_statement_is_asked_for_and_a_no_is_a_no(file, monkeypatch):
    asked = []

    def confirm(text, default):
        asked.append(text)
        return len(asked) > 1

    monkeypatch.setattr(command.click, "confirm", confirm)
    monkeypatch.setattr(command.sys, "stdin", SimpleNamespace(isatty=lambda: True))
    arguments = ["doctor", file, "--apply", "--admin-dsn-env", "ADMIN_DSN"]
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments, standalone_mode=False)
    assert ended.value.code == 1
    assert len(asked) == 2
    assert "Run this?" in asked[0]
    severity = checks(run(file, "--json"))
    assert sorted((severity["publication.exists"], severity["rights.select"])) == ["error", "ok"]


@pytest.mark.postgres
def test_in_words_each_problem_has_its_reason_and_its_statement(file):
    output = run(file, "--check", "rights").stdout
    assert "  error   select" in output
    assert "why   The snapshot reads the rows themselves." in output
    assert 'mend  GRANT SELECT ON "public"."item" TO' in output
    assert "(--apply does this)" in output
    assert output.splitlines()[-1].startswith("something blocks: ")
    assert output.isascii()


@pytest.mark.postgres
def test_a_connector_of_the_cluster_is_examined_here_with_a_secret_that_is_given_here(config, monkeypatch):
    asked = []

    def request(method, url, **_):
        asked.append(url)
        if url.partition("?")[0].endswith("/config"):
            return httpx.Response(200, json={**config, "name": "shop"})
        return httpx.Response(501, json={"error_code": 501, "message": "not yet", "code": "rest.not_available"})

    monkeypatch.setattr(httpx, "request", request)
    secret = ("--password-env", "READER_PASSWORD")
    answer = run("shop", "--json", *secret, "--check", "reach.connection", "--check", "slot.position")
    assert checks(answer) == {"reach.connection": "ok", "slot.position": "unknown"}
    monkeypatch.setitem(config, "database.password", "****")
    masked = run("shop", "--json", "--admin-dsn-env", "ADMIN_DSN")
    assert masked.exit_code == 2
    assert json.loads(masked.stdout)["error"]["code"] == "config.masked_value"
    assert checks(run("shop", "--json", *secret, "--check", "reach.connection")) == {"reach.connection": "ok"}
    assert not [url for url in asked if "/doctor" in url]
    assert run("shop", "--json").exit_code == 1
    assert asked[-1].partition("?")[0].endswith("/v1/connectors/shop/doctor"), "where the secrets are"


@pytest.mark.postgres
def test_no_secret_is_in_the_arguments_of_the_process(postgres, database):
    password = unquote(urlsplit(postgres.dsn(database)).password)
    environment = {**os.environ, "THE_DSN": postgres.dsn(database)}
    argv = [sys.executable, "-m", "cdcworker.worker.cli.main", "doctor", "--dsn-env", "THE_DSN", "--check", "reach.*"]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert password not in done.stdout + done.stderr + " ".join(argv)
    assert "nothing blocks" in done.stdout
    assert "\x1b" not in done.stdout


def machine(kafka, group):
    return DoctorMachine({"bootstrap.servers": kafka.bootstrap}, group)


@pytest.mark.kafka
def test_kafka_answers_says_its_release_and_has_no_topics_yet(kafka):
    group = f"g{secrets.token_hex(4)}"
    for check in doctor_kafka.CHECKS:
        (result,) = check.run(machine(kafka, group))
        assert result.status == "ok", result
    (version,) = doctor_kafka._version(machine(kafka, group))
    assert version.measured.startswith("Kafka 4.")


@pytest.mark.kafka
def test_a_topic_that_forgets_and_one_with_too_many_partitions_are_found_and_good_ones_pass(kafka):
    from cdcworker.coordinator.kafka.clients import make_admin
    from cdcworker.coordinator.kafka.internal_topics import TopicNames, ensure_topics, internal_topics
    from confluent_kafka.admin import NewTopic

    group = f"g{secrets.token_hex(4)}"
    properties = {"bootstrap.servers": kafka.bootstrap}
    admin = make_admin(properties, client_id="t")
    bad = [
        NewTopic(f"{group}.offsets", 5, 1, config={"cleanup.policy": "delete"}),
        NewTopic(f"{group}.configs", 3, 1, config={"cleanup.policy": "compact"}),
    ]
    for future in admin.create_topics(bad).values():
        future.result(30)
    results = [item for item in doctor_kafka._topics(machine(kafka, group)) if item.status == "error"]
    assert {(item.measured, item.code) for item in results} == {
        (f"{group}.offsets", "kafka.topic_misconfigured"), (f"{group}.configs", "kafka.topic_misconfigured"),
    }  # fmt: skip
    assert all(item.hint for item in results)
    good = f"g{secrets.token_hex(4)}"
    ensure_topics(properties, internal_topics(TopicNames.of_group(good)), client_id="t")
    assert [item.status for item in doctor_kafka._topics(machine(kafka, good))] == ["ok"]


@pytest.mark.kafka
def test_a_kafka_that_is_not_there_is_said_and_the_rest_is_unknown(tmp_path):
    path = tmp_path / "worker.properties"
    path.write_text("bootstrap.servers=127.0.0.1:1\ngroup.id=g\n")
    answer = run("--config", str(path), "--json", "--check", "kafka")
    assert answer.exit_code == 3
    assert checks(answer) == {"kafka.reachable": "error", "kafka.version": "unknown", "kafka.topics": "unknown"}
