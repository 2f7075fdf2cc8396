"""The embedded stack as its users see it: real servers, started, restarted and removed."""

import os

import psycopg
import pytest
from confluent_kafka.admin import AdminClient


@pytest.mark.kafka
def test_the_broker_answers_and_comes_back_on_its_port_after_a_restart(kafka):
    before = kafka.bootstrap, kafka.pid
    cluster = AdminClient({"bootstrap.servers": kafka.bootstrap}).list_topics(timeout=20).cluster_id
    kafka.restart()
    assert kafka.bootstrap == before[0]
    assert kafka.pid != before[1]
    assert AdminClient({"bootstrap.servers": kafka.bootstrap}).list_topics(timeout=20).cluster_id == cluster


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
