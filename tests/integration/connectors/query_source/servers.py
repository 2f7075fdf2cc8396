"""Servers as outsides of the source of a query: each is reached through a port that can be closed."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

import psycopg
from cdcworker.worker.devstack.ports import HOST
from psycopg.conninfo import conninfo_to_dict

from tests.contract.query_source.outside import Outside
from tests.integration.connectors.targets.jdbc_receivers import Gate


class PostgresOutside(Outside):
    """A database of its own on the session's server."""

    orders = "create table orders (id bigint primary key, customer text, changed timestamptz)"
    unplaced = ("null", "'-infinity'")
    has_nul = False

    def __init__(self, server: Any) -> None:
        self._server = server
        self.database = server.create_database()
        self.gate = Gate(server.port)
        self.own = psycopg.connect(server.dsn(self.database), autocommit=True, prepare_threshold=None)
        super().__init__()

    def empty(self) -> None:
        """The database is as a new one."""
        names = self.own.execute("select nspname from pg_namespace where nspname !~ '^(pg_|information)'").fetchall()
        for (name,) in names:
            self.run(f'drop schema "{name}" cascade')
        self.run("create schema public")
        self.run("grant usage on schema public to public")
        super().__init__()

    @property
    def database_config(self) -> Mapping[str, str]:
        found = conninfo_to_dict(self._server.dsn(self.database))
        return {
            "connection.url": f"jdbc:postgresql://{HOST}:{self.gate.port}/{self.database}",
            "connection.user": str(found["user"]),
            "connection.password": str(found.get("password", "")),
        }

    def run(self, text: str) -> None:
        self.own.execute(text)

    def add(self, number: int, at: str = "null", customer: str = "c") -> None:
        # Times are in UTC wherever the server is.
        super().add(number, f"'{at}+00'" if at[0].isdigit() else at, customer)

    def stop(self) -> None:
        self.gate.stop()

    def start(self) -> None:
        self.gate.start()

    def close(self) -> None:
        self.own.close()
        self.gate.stop()
        self._server.drop_database(self.database)


class MariaDbOutside(Outside):
    """A database of its own on the session's server, whose texts are in UTF-8."""

    orders = "create table orders (id bigint primary key, customer longtext, changed datetime(6))"
    unplaced = ("null", "'0000-00-00 00:00:00'")
    slow = "select count(*) from information_schema.collations a, information_schema.collations b, information_schema.collations c"
    other_type = "alter table orders modify customer varchar(7)"

    def __init__(self, server: Any) -> None:
        from cdcworker.connectors.mysql_client.login import connected
        from cdcworker.connectors.query_source.mysql import REFUSALS

        self._login = server.login()
        self.database = f"q{uuid.uuid4().hex[:8]}"
        self.gate = Gate(server.port)
        self.own = connected(self._login, "test", REFUSALS, sql_mode="NO_ENGINE_SUBSTITUTION")
        self._create()

    @property
    def database_config(self) -> Mapping[str, str]:
        return {
            "connection.url": f"jdbc:mariadb://{HOST}:{self.gate.port}/{self.database}",
            "connection.username": self._login.user,
            "connection.password": self._login.password,
        }

    def empty(self) -> None:
        """The database is as a new one."""
        self.run(f"drop database {self.database}")
        self._create()

    def _create(self) -> None:
        self.run(f"create database {self.database} character set utf8mb4")
        self.run(f"use {self.database}")
        self.run("set time_zone = default")
        super().__init__()

    def run(self, text: str) -> None:
        self.own.do(text)

    def write_text(self, text: str) -> None:
        self.texts.append(text)
        self.own.do("insert into orders (id, customer) values (%s, %s)", (len(self.texts), text))

    def stop(self) -> None:
        self.gate.stop()

    def start(self) -> None:
        self.gate.start()

    def close(self) -> None:
        self.run(f"drop database {self.database}")
        self.own.close()
        self.gate.stop()
