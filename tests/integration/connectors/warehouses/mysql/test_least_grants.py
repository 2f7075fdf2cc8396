"""The user whom `cdcworker roles` makes can do all that a sink does, and reads no other database."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cdcworker.connectors.api.abilities import RoleRequest
from cdcworker.connectors.warehouses.mysql.connection import opened, probe
from cdcworker.connectors.warehouses.mysql.kind import role_script
from cdcworker.connectors.warehouses.mysql.writer import MySqlWriter

from tests import change_streams
from tests.contract.warehouses import rows, run

pytestmark = pytest.mark.mysql
USER, PASSWORD = "o'loader", "hunter2 of the loader"
ACCOUNT = "'o''loader'@'%'"


def test_the_script_is_enough_for_all_that_a_sink_does(mysql):
    mysql.wipe()
    mysql.ask(f"drop user if exists {ACCOUNT}", "create database publicx", "create table publicx.secret (id int)")
    for _ in range(2):
        wanted = RoleRequest(USER, "unused", options={"schemas": ("public", "x_y")})
        mysql.ask(*(statement for step in role_script(wanted) for statement in step.statements))
    mysql.ask(f"alter user {ACCOUNT} identified by '{PASSWORD}' account unlock")
    login = replace(mysql.login(), user=USER, password=PASSWORD)
    probe(login)
    stream, writer = change_streams.Stream(), MySqlWriter(login, "sink")
    writer.fence((1, 0))
    stream.insert(change_streams.NARROW, (1, 1, "a", "b"))
    run(stream, writer)
    stream.update(change_streams.NARROW, (1, 2, "c", None), (3,))
    more = change_streams.table(*change_streams.NARROW.columns, change_streams.column("x", "int", "integer"))
    stream.insert(more, (2, 1, "a", "b", 7))
    stream.delete(more, (2,))
    run(stream, writer)
    assert rows(writer, "id", "n", "a", "big", "x") == [(1, 2, "c", "b", None)]
    writer.close()
    connection = opened(login)
    assert "publicx" not in {row[0] for row in connection.ask("show databases")}
    connection.close()
    mysql.ask(f"drop user {ACCOUNT}")
