"""`cdcworker dev` on a real server: what changes is shown, and nothing of it stays there, whatever ends the command."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys

import psycopg
import pytest
from cdcworker.worker.cli.commands.local import dev

from tests.herders import eventually

COMMAND = (sys.executable, "-m", "cdcworker.worker.cli.main", "dev")
LEFT = """
select (select count(*) from pg_replication_slots where database = current_database()), (select count(*) from pg_publication),
       (select count(*) from pg_class where relnamespace = 'public'::regnamespace and relkind = 'r')
"""
IDLE = """
select count(*) from pg_stat_activity
where datname = current_database() and application_name like '%guardian' and now() - state_change > interval '1 s'
"""
pytestmark = pytest.mark.postgres


@pytest.fixture
def database(postgres):
    name = postgres.create_database()
    with psycopg.connect(postgres.dsn(name), autocommit=True) as connection:
        connection.execute("create table item (id int primary key, name text, price numeric(8, 2), at timestamptz)")
        connection.execute("create table note (text text)")
        connection.execute("create table other (id int primary key)")
        yield Database(name, postgres.dsn(name), connection)
    postgres.drop_database(name)


class Database:
    def __init__(self, name, dsn, connection):
        self.name, self.dsn, self._connection = name, dsn, connection

    def run(self, *statements):
        for statement in statements:
            self._connection.execute(statement)

    def ask(self, query):
        return self._connection.execute(query).fetchone()

    def left(self):
        return self.ask(LEFT)

    def publications(self):
        return [row[0] for row in self._connection.execute("select pubname from pg_publication order by 1")]


class Command:
    """`dev` as a process, with the lines that it has written."""

    def __init__(self, dsn, *options):
        environment = {**os.environ, "DEV_DSN": dsn}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen([*COMMAND, "--dsn-env", "DEV_DSN", *options], env=environment, **pipes)

    def event(self):
        return json.loads(self.process.stdout.readline())

    def events(self, count):
        return [self.event() for _ in range(count)]

    def ready(self):
        assert self.event()["event"] == "connecting"
        found = self.event()
        assert found["event"] == "ready", self.process.stderr.read()
        return found

    def end(self):
        out, err = self.process.communicate(timeout=30)
        return self.process.returncode, out, err


@contextlib.contextmanager
def running(database, *options):
    command = Command(database.dsn, *options)
    try:
        yield command
    finally:
        command.process.kill()
        command.process.communicate()


def test_rows_that_change_are_shown_and_nothing_is_left(database):
    before = database.left()
    with running(database, "--json", "--tables", "public.(item|note)", "--count", "3") as command:
        assert list(command.ready()["left_out"]) == ["public.note"]
        database.run(
            "insert into note values ('a'); update note set text = 'b'",
            "insert into other values (1)",
            "insert into item values (1, 'axe', 12.50, '2026-01-31 12:00:00+00')",
            "update item set price = 13 where id = 1",
            "delete from item",
        )
        created, updated, deleted = command.events(3)
        assert (created["op"], created["table"], created["key"]) == ("create", "public.item", {"id": 1})
        row = {"id": 1, "name": "axe", "price": "12.50", "at": created["after"]["at"]}
        assert created["after"] == row
        assert created["after"]["at"].startswith("2026-01-31")
        assert (updated["op"], updated["after"]["price"]) == ("update", "13.00")
        assert (deleted["op"], deleted["key"], deleted["after"]) == ("delete", {"id": 1}, None)
        assert command.end()[0] == 0
    assert database.left() == before


def test_rows_that_are_there_come_too_where_they_are_asked_for(database):
    database.run("insert into item values (1, 'axe', 1, now()), (2, 'saw', 2, now())", "insert into note values ('a')")
    before = database.left()
    with running(database, "--json", "--snapshot", "--count", "3") as command:
        assert list(command.ready()["left_out"]) == ["public.note"]
        read = command.events(2)
        assert [(event["op"], event["after"]["name"]) for event in read] == [("read", "axe"), ("read", "saw")]
        database.run("delete from item where id = 1")
        (deleted,) = command.events(1)
        assert (deleted["op"], deleted["key"]) == ("delete", {"id": 1})
        assert command.end()[0] == 0
    assert database.left() == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_and_nothing_is_left(database, number):
    before = database.left()
    with running(database, "--json") as command:
        command.ready()
        assert database.left() != before
        command.process.send_signal(number)
        code, out, err = command.end()
    assert (code, json.loads(out)["event"], err) == (0, "end", "")
    assert database.left() == before


def test_after_a_kill_nothing_is_left(database):
    before = database.left()
    with running(database, "--json") as command:
        command.ready()
        command.process.kill()
        command.process.wait()
        eventually(lambda: database.left() == before)


def test_what_an_earlier_run_has_left_is_dropped_and_what_is_read_is_not(database):
    database.run("create publication cdcworker_dev_0123abcd", "create publication cdcworker_dev_mine")
    with running(database, "--json") as one:
        one.ready()
        with running(database, "--json", "--count", "1") as other:
            other.ready()
            found = database.publications()
            assert len(found) == 3
            assert "cdcworker_dev_0123abcd" not in found
            database.run("insert into item values (1)")
            assert other.event()["op"] == "create"
            other.end()
        assert one.event()["op"] == "create"
    eventually(lambda: database.publications() == ["cdcworker_dev_mine"])


def test_tables_with_names_like_those_that_are_read_are_not_published(database):
    """The server refuses updates of a published table without a replica identity."""
    database.run(
        'create table "Item" (id int)', 'create table "a,b" (id int primary key)', "create table axb (id int)",
        'create table "item " (id int primary key)', "insert into axb values (1)", 'insert into "Item" values (1)',
    )  # fmt: skip
    with running(database, "--json", "--count", "2") as command:
        assert sorted(command.ready()["left_out"]) == ["public.Item", "public.axb", "public.note"]
        database.run("update axb set id = 2", 'update "Item" set id = 2')
        database.run('insert into "a,b" values (1)', 'insert into "item " values (1)')
        assert [event["table"] for event in command.events(2)] == ["public.a,b", "public.item "]


def test_a_look_goes_on_where_the_server_ends_idle_sessions(database):
    database.run(f"alter database {database.name} set idle_session_timeout = '500ms'")
    with running(database, "--json") as one:
        one.ready()
        eventually(lambda: database.ask(IDLE) == (1,))
        with running(database, "--json") as other:
            other.ready()
            assert len(database.publications()) == 2, "the guardian has its lock as long"
            database.run("insert into item values (1)")
            assert one.event()["op"] == "create"


def test_a_publication_that_is_there_is_read_and_stays(database):
    database.run("create publication mine for table only other")
    with running(database, "--publication", "mine", "--count", "1") as command:
        assert "connecting" in command.process.stderr.readline()
        assert "changes from now on" in command.process.stderr.readline()
        database.run("insert into item values (1)", "insert into other values (7)")
        code, out, _ = command.end()
    assert code == 0
    assert "CREATE" in out
    assert "public.other" in out
    assert "id=7" in out
    assert database.publications() == ["mine"]


def test_it_says_what_is_missing(database, postgres):
    for options, text in (
        (("--tables", "public.none"), "postgres.table_missing"),
        (("--tables", "public.note"), "postgres.table_without_key"),
        (("--publication", "none"), "postgres.publication"),
    ):
        with running(database, *options, "--seconds", "20") as command:
            code, _, err = command.end()
        assert (code, text in err) == (2, True), err
    assert database.left()[:2] == (0, 0)


@pytest.mark.parametrize(
    ("text", "is_told"),
    [
        ("host=localhost password = secret", True), ("host=localhost password=secret", True), ("postgres://u:p@[::1", False),
        ("postgres://u:secret@localhost/d", True), ("postgres://u@localhost/d?password=secret", True), ("postgres://u@localhost/d", False),
    ],
)  # fmt: skip
def test_a_password_that_process_lists_show_is_told(text, is_told):
    assert dev._has_password(text) is is_told
