"""A publication that is gone when who uses it ends, however it ends: a process of its own waits for that, and drops it.

A process that is killed can drop nothing itself. Where this one is killed as well, or the server cannot be reached, the next
guardian on the same database drops what has no guardian any more.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import psycopg
from cdcworker.connectors.postgres.config.settings import parse
from cdcworker.connectors.postgres.errors import CONNECTION_LOST, translate
from cdcworker.connectors.postgres.transport import server_functions
from cdcworker.connectors.postgres.transport.admin_connection import AdminConnection
from cdcworker.connectors.postgres.transport.connection import APPLICATION, connect
from cdcworker.schemas.errors import CODES, CdcError
from psycopg import sql

log = logging.getLogger(__name__)

PREFIX: Final = "cdcworker_dev_"
"""What the names of such publications begin with."""
_MODULE: Final = "cdcworker.connectors.postgres.server.publication_guardian"
_NAMES: Final = f"^{PREFIX}[0-9a-f]{{8}}$"
_LOCKS: Final = 0x63646364
"""The first number of the advisory locks by which guardians say that they are there."""
_END_S_MAX: Final = 20.0


@contextmanager
def guarded(config: Mapping[str, str]) -> Iterator[None]:
    """Starts the guardian of the config's `publication.name`, which somebody creates within the block. Raises CdcError where the
    server cannot be reached."""
    # A Ctrl-C of the terminal is not for the guardian: it ends when its stdin does.
    child = subprocess.Popen(  # noqa: S603  this module itself
        [sys.executable, "-m", _MODULE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    assert child.stdin
    assert child.stdout
    with child:
        try:
            child.stdin.write(json.dumps(dict(config)).encode() + b"\n")
            child.stdin.flush()
            if (error := _told(child.stdout.readline())) is not None:
                raise error
            yield
        finally:
            left = _ended(child)
    if left and (error := _told(left)) is not None:
        log.error("publication is left behind publication=%s error=%s", config["publication.name"], error)


def _ended(child: subprocess.Popen[bytes]) -> bytes:
    """Ends the guardian, and returns what it says at last."""
    try:
        return child.communicate(timeout=_END_S_MAX)[0]
    except subprocess.TimeoutExpired:
        child.kill()
        return b"{}"


def _told(line: bytes) -> CdcError | None:
    """Returns the error that the guardian tells, None where it tells none."""
    try:
        error = json.loads(line)["error"]
    except (ValueError, KeyError):
        return CdcError(CONNECTION_LOST, "the process that guards the publication has ended")
    if error is None:
        return None
    return CdcError(error["code"] if error["code"] in CODES else CONNECTION_LOST, error["message"], hint=error["hint"])


def main() -> int:
    """Reads the config as a line of JSON on stdin, and answers with a line. Drops the publication when stdin ends."""
    settings = parse(json.loads(sys.stdin.readline()))
    try:
        with connect(settings, f"{APPLICATION}:guardian") as connection:
            _guard(connection, settings.publication)
            _tell(None)
            sys.stdin.read()
        # The connection that holds the lock may be gone by now.
        with connect(settings, f"{APPLICATION}:guardian") as connection:
            _drop(connection, settings.publication)
    except (CdcError, psycopg.Error) as error:
        _tell(error)
        return 1
    return 0


def _tell(error: CdcError | psycopg.Error | None) -> None:
    told: dict[str, Any] = {"error": translate(error).to_dict() if error is not None else None}
    try:
        print(json.dumps(told), flush=True)
    except BrokenPipeError:
        # Nobody is left to be told.
        sys.stdout = open("/dev/null", "w", encoding="utf-8")  # noqa: SIM115


def _guard(connection: AdminConnection, publication: str) -> None:
    """Takes the publication's lock, and drops those of earlier guardians that hold theirs no more."""
    connection.execute("select pg_advisory_lock(%s, hashtext(%s))", (_LOCKS, publication))
    if server_functions.is_standby(connection):
        return
    rows = connection.execute("select pubname::text from pg_publication where pubname ~ %s", (_NAMES,)).fetchall()
    for (name,) in rows:
        row = connection.execute("select pg_try_advisory_lock(%s, hashtext(%s))", (_LOCKS, name)).fetchone()
        if not row or not row[0]:
            continue
        try:
            _drop(connection, name)
        except psycopg.errors.InsufficientPrivilege:
            # It is another role's, whose next guardian drops it.
            continue
        finally:
            connection.execute("select pg_advisory_unlock(%s, hashtext(%s))", (_LOCKS, name))


def _drop(connection: AdminConnection, publication: str) -> None:
    connection.execute(sql.SQL("drop publication if exists {}").format(sql.Identifier(publication)))


if __name__ == "__main__":
    sys.exit(main())
