"""A MariaDB server that writes a binary log with all that it can say of rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .crash_stage import WITNESS, replicate
from .logged import LoggedServer, find_programs


@pytest.fixture(scope="package")
def logged(devstack_dir: Path) -> Iterator[LoggedServer]:
    """The server of these tests, with `.events(*statements)`. Tests that use it have the marker `mysql`."""
    programs = find_programs()
    assert programs is not None
    server = LoggedServer(programs, devstack_dir / "mariadb-logged")
    server.start()
    try:
        yield server
    finally:
        server.remove()


@pytest.fixture(scope="package")
def watched(devstack_dir: Path) -> Iterator[tuple[LoggedServer, LoggedServer]]:
    """A server whose databases tests with processes make, and the witness, which follows it."""
    programs = find_programs()
    assert programs is not None
    primary = LoggedServer(programs, devstack_dir / "mariadb-crashing")
    replica = LoggedServer(programs, devstack_dir / "mariadb-witness", WITNESS)
    try:
        primary.start()
        replica.start()
        replicate(primary, replica)
        yield primary, replica
    finally:
        primary.remove()
        replica.remove()
