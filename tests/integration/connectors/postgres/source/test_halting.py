"""What happens to a slot, a publication or a server while a source's process runs, and before it starts: within ten
seconds the process has halted with the code of it, or goes on where nothing is lost."""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from cdcworker.worker.devstack.postgres import EmbeddedPostgres

from tests.contract.source_crashes import EXACT, Child
from tests.integration.connectors.postgres.doctor.test_position_checks import advance, drop_slot, make_slot

from .test_crash_matrix import PASSWORD, Stage

pytestmark = [pytest.mark.kafka, pytest.mark.postgres]

HALT_S_MAX = 10.0
TRIALS = 3
"""The machine's other work may take more than the process has: the quickest of some trials counts."""
SMALL = {"shared_buffers": "32MB", "max_slot_wal_keep_size": "1MB"}


class Drama:
    """A source that has read what there is, and the server that something happens to."""

    def __init__(self, kafka, server: EmbeddedPostgres, folder: Path) -> None:
        self.server, self.folder = server, folder
        self.stage = Stage(kafka, server, random.Random(1), folder, EXACT)
        self.slot = f"s_{self.stage.database}"

    @property
    def db(self) -> psycopg.Connection:
        return self.stage.db

    def connect(self) -> None:
        self.db.close()
        self.stage.db = psycopg.connect(self.server.dsn(self.stage.database), autocommit=True)

    def running(self) -> Child:
        child, target = self.stage.child(), self.stage.work(0)
        child.wait(lambda: child.reached(target), "it reads")
        return child

    def stopped(self) -> None:
        """As an administrator would before a copy of the files is made."""
        self.db.close()
        self.server.stop()

    def has_server(self) -> None:
        self.server.start()
        self.connect()

    def close(self) -> None:
        for child in self.stage.children:
            child.close()
        # A fault that did not come to its end has left the server down.
        with suppress(psycopg.OperationalError):
            self.connect()
            self.stage.close()


def free_of(drama: Drama, *faults: Callable[[psycopg.Connection, str], None]) -> None:
    """Whatever holds the slot is ended, also the source that comes back for it."""
    deadline = time.monotonic() + 60
    for fault in faults:
        while True:
            assert time.monotonic() < deadline
            try:
                fault(drama.db, drama.slot)
                break
            except psycopg.errors.ObjectInUse:
                drama.db.execute("select pg_terminate_backend(pid, 10000) from pg_stat_replication")


def dropped(drama: Drama) -> None:
    free_of(drama, drop_slot)


def recreated(drama: Drama) -> None:
    free_of(drama, drop_slot, make_slot)


def advanced(drama: Drama) -> None:
    drama.db.execute("insert into t values (1000000)")
    free_of(drama, advance)


def lost(drama: Drama) -> None:
    """An open transaction keeps the slot back, and the log goes on beyond what a slot may keep."""
    with psycopg.connect(drama.server.dsn(drama.stage.database)) as holder:
        holder.execute("insert into t values (1000000)")
        status = "select wal_status from pg_replication_slots where slot_name = %s"
        deadline = time.monotonic() + 60
        while drama.db.execute(status, (drama.slot,)).fetchone() != ("lost",):
            assert time.monotonic() < deadline
            drama.db.execute("select pg_logical_emit_message(true, 'other', 'more')")
            drama.db.execute("select pg_switch_wal()")
            drama.db.execute("checkpoint")


def without_publication(drama: Drama) -> None:
    (name,) = drama.db.execute("select pubname from pg_publication").fetchone()
    drama.stage.more["publication.autocreate.mode"] = "disabled"
    drama.db.execute(f"drop publication {name}")


def put_back(drama: Drama, *, promoted: bool) -> None:
    """The files of an earlier time, as they were or as a server that was promoted there."""
    drama.server.kill()
    data = drama.server.data
    subprocess.run(["mv", data, drama.folder / "newer"], check=True)
    subprocess.run(["mv", drama.folder / "older", data], check=True)
    if promoted:
        signal = data / "standby.signal"
        subprocess.run(["cp", "-p", data / "PG_VERSION", signal], check=True)
    drama.has_server()
    if promoted:
        drama.db.execute("select pg_promote(true, 60)")


def restored(drama: Drama) -> None:
    put_back(drama, promoted=False)


def restored_and_promoted(drama: Drama) -> None:
    put_back(drama, promoted=True)


def promoted(drama: Drama) -> None:
    """Nothing is lacking on the new timeline."""
    drama.stopped()
    subprocess.run(["cp", "-p", drama.server.data / "PG_VERSION", drama.server.data / "standby.signal"], check=True)
    drama.has_server()
    drama.db.execute("select pg_promote(true, 60)")


def another_server(drama: Drama) -> None:
    """Behind the same address, with a database of the same name."""
    other = EmbeddedPostgres(drama.folder / "other", SMALL)
    other.password = drama.server.password
    other.start()
    other.create_database(drama.stage.database)
    with psycopg.connect(other.dsn()) as db:
        db.execute(f"create role reader_{drama.stage.database} login replication password '{PASSWORD}'")
    other.stop()
    drama.server.kill()
    port = drama.server.port
    drama.server.directory, drama.server._user = other.directory, other._user
    drama.server.port = port
    drama.has_server()


@dataclass(frozen=True)
class Case:
    fault: Callable[[Drama], None]
    running: frozenset[str]
    """Codes of a process that runs; empty: it goes on."""
    starting: frozenset[str]
    own_server: bool = True
    needs_copy: bool = False


def case(fault, *codes: str, starting: tuple[str, ...] | None = None, **more: bool) -> Case:
    found = [
        frozenset(f"postgres.{code}" for code in named) for named in (codes, codes if starting is None else starting)
    ]
    return Case(fault, *found, **more)


CASES = (
    case(dropped, "slot_missing", own_server=False),
    case(recreated, "slot_recreated", "slot_missing", starting=("slot_recreated",), own_server=False),
    case(advanced, "slot_advanced", "slot_recreated", own_server=False),
    case(without_publication, "publication", own_server=False),
    case(lost, "slot_lost"),
    case(restored, "restored", needs_copy=True),
    case(restored_and_promoted, "diverged", needs_copy=True),
    case(another_server, "other_server"),
    case(promoted),
)
OFTEN = (dropped, without_publication)
"""Tried in every run; the others take a server of their own, or say the same about another code."""


@contextmanager
def drama_of(one: Case, kafka, postgres, folder: Path) -> Iterator[Drama]:
    folder.mkdir()
    # The server's own user looks into it.
    folder.chmod(0o711)
    server = EmbeddedPostgres(folder / "server", SMALL) if one.own_server else postgres
    if one.own_server:
        server.start()
    drama = Drama(kafka, server, folder)
    try:
        if one.needs_copy:
            first = drama.running()
            assert first.stop() == 0
            drama.stopped()
            subprocess.run(["cp", "-a", server.data, folder / "older"], check=True)
            drama.has_server()
        yield drama
    finally:
        drama.close()
        if one.own_server:
            server.remove()


def seconds(began: float, child: Child, codes: frozenset[str], drama: Drama) -> float:
    """Until it has halted with one of the codes, or for none until it has read what is written now."""
    if codes:
        child.wait(lambda: "FAILED" in child.states(), "it halts")
        took = time.monotonic() - began
        (error,) = [m["error"] for m in child.messages if m["type"] == "status" and m["state"] == "FAILED"]
        assert error["code"] in codes
        return took
    target = drama.stage.work(0)
    child.wait(lambda: child.reached(target), "it goes on")
    return time.monotonic() - began


def measured(one: Case, kafka, postgres, folder: Path) -> tuple[float, float]:
    """Seconds from the event to its code: of a process that ran, and of one that is started behind it."""
    with drama_of(one, kafka, postgres, folder) as drama:
        child = drama.running()
        one.fault(drama)
        running = seconds(time.monotonic(), child, one.running, drama)
        child.close()
        began = time.monotonic()
        return running, seconds(began, drama.stage.child(), one.starting, drama)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "one",
    [pytest.param(one, id=one.fault.__name__, marks=() if one.fault in OFTEN else pytest.mark.long) for one in CASES],
)
def test_it_halts_soon_and_by_name_or_goes_on(kafka, postgres, tmp_path_factory, one):
    trials = []
    while len(trials) < TRIALS:
        trials.append(measured(one, kafka, postgres, tmp_path_factory.mktemp("halting") / "at"))
        running, starting = (min(times) for times in zip(*trials, strict=True))
        print(f"{one.fault.__name__}: running {trials[-1][0]:.1f} s, starting {trials[-1][1]:.1f} s")
        if max(running, starting) <= HALT_S_MAX:
            return
    pytest.fail(f"the quickest of {TRIALS} trials: running {running:.1f} s, starting {starting:.1f} s")
