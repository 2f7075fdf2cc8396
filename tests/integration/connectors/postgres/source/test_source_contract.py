"""The contract of sources over PostgreSQL's: a slot of a real server."""

from __future__ import annotations

import time
from typing import ClassVar

import psycopg
import pytest
from cdcworker.worker.conformance.source_steps import READ_S_MAX

from tests.contract.sources import SourceContract, SourceUnderTest

pytestmark = pytest.mark.postgres


class PostgresUnderTest(SourceUnderTest):
    unfit: ClassVar = {"snapshot.mode": "sometimes"}

    def __init__(self, server, dbname, db) -> None:
        info = psycopg.conninfo.conninfo_to_dict(server.dsn(dbname))
        names = {"hostname": "host", "port": "port", "user": "user", "password": "password"}
        self.config = {
            "connector.class": "postgres",
            **{f"database.{key}": str(info[name]) for key, name in names.items()},
            "database.dbname": dbname,
            "topic.prefix": "shop",
            "slot.name": f"s_{dbname}",
            "snapshot.mode": "no_data",
        }
        self._db, self._rows = db, 0
        self._begin = None
        db.execute("create table lines(id int primary key)")

    def write(self, count: int) -> None:
        for _ in range(count):
            self._rows += 1
            self._db.execute("insert into lines values (%s)", (self._rows,))

    def begin(self):
        """The slot is made by the first opening; nothing is acknowledged to it, so that every position can be gone back to."""
        deadline = time.monotonic() + READ_S_MAX
        while self._begin is None:
            with self.opened() as task:
                while self._begin is None and time.monotonic() < deadline:
                    self._begin = task.poll().position
            assert time.monotonic() < deadline
        return self._begin


class TestPostgres(SourceContract):
    @pytest.fixture
    def source(self, postgres, database, db):
        return PostgresUnderTest(postgres, database, db)
