"""A soak's clients on real servers: whatever ends under them, their ledger has what was committed, and a lost row is seen."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from cdcworker.worker.devstack.mariadb import LOGGING

from tests.mariadb_server import MariaDbServer, find_programs
from tests.soak import bank as banks
from tests.soak.bank import TABLES, Bank, Client, MariaDbBank, PostgresBank
from tests.soak.checks import difference, ledger_difference, postgres_rows

from .cluster import wait


@pytest.fixture
def clients(tmp_path: Path) -> Iterator[Callable[[Bank], Client]]:
    started: list[Client] = []

    def start(bank: Bank) -> Client:
        client = Client(f"c{len(started)}", bank, tmp_path / f"c{len(started)}.jsonl", 1, 0.001)
        client.start()
        started.append(client)
        return client

    yield start
    for client in started:
        client.stop()
        assert client.error is None


def more(client: Client, count: int) -> None:
    wanted = client.file.ledger.ok + count
    wait(f"{count} more transfers", lambda: client.file.ledger.ok >= wanted or client.error)


def assert_as_the_ledger(client: Client, bank: Bank) -> None:
    with client.held(60):
        assert client.file.ledger.failed > 0
        assert ledger_difference([client.file.ledger], bank.rows("accounts")) == ""


@pytest.mark.postgres
def test_a_client_whose_connections_are_terminated_knows_what_it_committed(postgres: Any, clients: Any) -> None:
    database = postgres.create_database()
    bank = PostgresBank(postgres, database)
    bank.create()
    client = clients(bank)
    end = "select pg_terminate_backend(pid) from pg_stat_activity where application_name = %s and datname = %s"
    with psycopg.connect(postgres.dsn(), autocommit=True) as connection:
        for _ in range(8):
            more(client, 10)
            connection.execute(end, (client.name, database))
    more(client, 10)
    assert_as_the_ledger(client, bank)


@pytest.mark.mysql
def test_a_client_whose_server_is_killed_knows_what_it_committed(
    tmp_path: Path, clients: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(banks, "DDL_S", 0.5)
    programs = find_programs()
    assert programs is not None
    server = MariaDbServer(programs, tmp_path / "mariadb", {**LOGGING, "innodb-flush-log-at-trx-commit": "1"})
    with contextlib.ExitStack() as ended:
        ended.callback(server.remove)
        server.start()
        server.ask("create database bank")
        bank = MariaDbBank(server, "bank")
        bank.create()
        client = clients(bank)
        for _ in range(2):
            more(client, 30)
            server.kill()
            server.start()
        more(client, 30)
        assert_as_the_ledger(client, bank)
        # Columns have come and gone.
        assert bank.rows("offers")[0][2:] != []
        client.stop()


@pytest.mark.postgres
def test_a_row_that_is_deleted_behind_the_back_of_a_sink_is_seen(postgres: Any, clients: Any) -> None:
    source, target = postgres.create_database(), postgres.create_database()
    bank, copy = PostgresBank(postgres, source), PostgresBank(postgres, target)
    bank.create()
    copy.create()
    for table in TABLES:
        assert difference(table, bank.rows(table), postgres_rows(postgres.dsn(target), table)) is None
    with psycopg.connect(postgres.dsn(target)) as connection:
        connection.execute("delete from cards where id = 7")
    found = difference("cards", bank.rows("cards"), postgres_rows(postgres.dsn(target), "cards"))
    assert found is not None
    assert found.missing == (7,)
    assert difference("cards", bank.rows("cards"), postgres_rows(postgres.dsn(target), "nowhere")) is not None
