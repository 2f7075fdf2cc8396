"""The contract of sources over MariaDB's: the log of a real server."""

from __future__ import annotations

import time
from typing import Any, ClassVar

import pytest
from cdcworker.connectors.mysql.source.connector import MySqlSource
from cdcworker.worker.conformance.source_steps import READ_S_MAX

from tests.contract.sources import SourceContract, SourceUnderTest

from ..logged import LoggedServer
from .reading import config_of

pytestmark = pytest.mark.mysql


class MariaDbUnderTest(SourceUnderTest):
    unfit: ClassVar = {"snapshot.mode": "sometimes"}

    def __init__(self, server: LoggedServer) -> None:
        self.config = config_of(server, snapshot__mode="no_data")
        self._server, self._rows = server, 0
        self._begin: Any = None
        server.ask("create table shop.`lines` (id int primary key)")

    def connector(self) -> Any:
        # No class of configs names it yet.
        return MySqlSource(self.config)

    def write(self, count: int) -> None:
        for _ in range(count):
            self._rows += 1
            self._server.ask(f"insert into shop.`lines` values ({self._rows})")

    def begin(self) -> Any:
        deadline = time.monotonic() + READ_S_MAX
        while self._begin is None:
            with self.opened() as task:
                while self._begin is None and time.monotonic() < deadline:
                    self._begin = task.poll().position
            assert time.monotonic() < deadline
        return self._begin


class TestMariaDb(SourceContract):
    @pytest.fixture
    def source(self, shop: LoggedServer) -> MariaDbUnderTest:
        return MariaDbUnderTest(shop)
