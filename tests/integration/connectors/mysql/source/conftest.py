"""Tasks over the MariaDB server of these tests."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.integration import one_worker

from ..logged import LoggedServer
from .reading import Reading


@pytest.fixture
def shop(logged: LoggedServer) -> Iterator[LoggedServer]:
    """The server with an empty database `shop`."""
    logged.ask("drop database if exists shop", "create database shop")
    yield logged
    logged.ask("drop database if exists shop")


@pytest.fixture
def reading() -> Iterator[Callable[..., Reading]]:
    """Makes readings, whose tasks end with the test."""
    made: list[Reading] = []

    def make(server: LoggedServer, **config: str) -> Reading:
        made.append(Reading(server, **config))
        return made[-1]

    yield make
    for one in made:
        one.stop()


@pytest.fixture(scope="package")
def worker(kafka: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[one_worker.Worker]:
    one = one_worker.Worker(tmp_path_factory.mktemp("mysql"), kafka.bootstrap, f"my{uuid.uuid4().hex[:8]}")
    one.wait_ready()
    yield one
    one.kill()
