"""Two MariaDB servers: one whose source is killed, and one that follows it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ..logged import LoggedServer, find_programs
from .crash_stage import WITNESS, replicate


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
