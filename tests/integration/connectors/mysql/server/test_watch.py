"""`cdcworker dev` on a real MariaDB: what changes is shown, and nothing is written there."""

from __future__ import annotations

import pytest

from tests.integration.worker.cli.test_dev import running

pytestmark = pytest.mark.mysql
WRITES = (
    "insert into watched.item values (1, 'axe', 12.50)",
    "update watched.item set price = 13",
    "delete from watched.item",
)


class Database:
    def __init__(self, server, name):
        self.dsn = server.url(name).replace("mysql://", "mariadb://", 1)


@pytest.fixture
def database(logged):
    logged.ask(
        "create or replace database watched",
        "create table watched.item (id int primary key, name varchar(20), price decimal(8, 2))",
        "create table watched.note (text text)",
    )
    yield Database(logged, "watched")
    logged.ask("drop database watched")


def test_rows_that_change_are_shown_and_nothing_is_written(database, logged):
    before = logged.position()
    with running(database, "--json", "--tables", r"watched\.item", "--count", "3") as one:
        one.ready()
        with running(database, "--json", "--count", "1") as other:
            other.ready()
            assert logged.position() == before, "no transaction was written"
            logged.ask("insert into watched.note values ('left out of one')", *WRITES)
            created, updated, deleted = one.events(3)
            assert other.event()["table"] == "watched.note"
            assert other.end()[0] == 0
        assert one.end()[0] == 0
    assert (created["op"], created["table"], created["key"]) == ("create", "watched.item", {"id": 1})
    assert created["after"] == {"id": 1, "name": "axe", "price": "12.50"}
    assert (updated["op"], updated["after"]["price"]) == ("update", "13.00")
    assert (deleted["op"], deleted["key"], deleted["after"]) == ("delete", {"id": 1}, None)


def test_rows_that_are_there_come_too_where_they_are_asked_for(database, logged):
    logged.ask("insert into watched.item values (1, 'axe', 12.50), (2, 'saw', 1)")
    before = logged.position()
    with running(database, "--json", "--snapshot", "--tables", r"watched\.item", "--count", "3") as command:
        command.ready()
        assert [(event["op"], event["key"]) for event in command.events(2)] == [
            ("read", {"id": 1}),
            ("read", {"id": 2}),
        ]
        assert logged.position() == before, "no transaction was written"
        logged.ask("delete from watched.item where id = 1")
        (deleted,) = command.events(1)
        assert (deleted["op"], deleted["key"]) == ("delete", {"id": 1})
        assert command.end()[0] == 0


def test_what_cannot_be_read_is_said(database):
    for options, code, text in (
        (("--publication", "mine"), 2, "PostgreSQL"),
        (("--tables", r"watched\.none"), 2, "mysql."),
    ):
        with running(database, *options, "--seconds", "20") as command:
            found, _, err = command.end()
        assert (found, text in err) == (code, True), err
