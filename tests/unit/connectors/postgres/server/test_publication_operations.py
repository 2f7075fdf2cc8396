"""What follows from a publication that has left out operations: without a server, and what is asked of one."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import psycopg
import pytest
from cdcworker.connectors import postgres
from cdcworker.connectors.capture.snapshot.chunk_scheduler import ChunkScheduler, ReadLimits
from cdcworker.connectors.capture.snapshot.progress import SnapshotLoad, SnapshotProgress, TableLoad
from cdcworker.connectors.postgres.config.settings import parse
from cdcworker.connectors.postgres.errors import CAPTURE
from cdcworker.connectors.postgres.server import publication_operations as operations
from cdcworker.connectors.postgres.server import slot
from cdcworker.connectors.postgres.server.publication_operations import SeenPublication
from cdcworker.connectors.postgres.source import captured_tables as tables
from cdcworker.connectors.postgres.source import periodic_checks as rounds
from cdcworker.connectors.postgres.source.periodic_checks import PeriodicChecks
from cdcworker.connectors.postgres.source.session import Scope
from cdcworker.schemas.errors import CdcError

from tests.unit.connectors.postgres.snapshot.test_watermark_snapshot import FakeReader, FakeReaderPool

from ..test_rules import CONFIG

WHOLE = SeenPublication("cudt", "700 1 same")
OLD, LATE, NEVER_NAMED = 1, 2, 3
TABLES = [(OLD, "public", "old"), (LATE, "public", "late"), (NEVER_NAMED, "public", "never_named")]


class One:
    """A source under a publication of all tables. `LATE` was made since the task was opened and is known from the
    stream, `NEVER_NAMED` is not even that."""

    def __init__(self, monkeypatch, progress: SnapshotProgress | None = None, **config: str) -> None:
        self.now, self.seen, self.locked = 0.0, WHOLE, False
        self.emptied: list = []
        self.oldest = 51
        self.marked = 100
        self.members = dict.fromkeys((OLD, LATE, NEVER_NAMED), 0)
        more = {"table.discovery.interval.ms": "0", "position.lost.policy": "resnapshot"} | config
        settings = parse(CONFIG | more)
        self.progress = progress or SnapshotProgress(
            loaded=[OLD, LATE], published="cudt", altered="690 1 same", gap=True
        )
        loader = ChunkScheduler(
            self.progress, FakeReaderPool(FakeReader()), ReadLimits(), CAPTURE, clock=lambda: self.now
        )
        self.session = SimpleNamespace(
            settings=settings,
            catalog=self,
            snapshot=SimpleNamespace(progress=self.progress, loader=loader),
            decoder=SimpleNamespace(out=[], plan=lambda oid: None),
            position=SimpleNamespace(safe_lsn=100),
            scope=Scope(settings, "c", existing=frozenset({OLD})),
            observe=lambda: None,
        )
        monkeypatch.setattr(rounds.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(operations, "let_through", lambda *_: self.seen)
        monkeypatch.setattr(slot, "published", self.published)
        monkeypatch.setattr(slot, "memberships", lambda *_: dict(self.members))
        monkeypatch.setattr(slot, "ensure_publication", self.ensure)
        monkeypatch.setattr(slot, "candidates", lambda *_: TABLES)
        monkeypatch.setattr(tables.locks, "limited", lambda *_: self)
        monkeypatch.setattr(tables.locks, "holders", lambda *_: "backend 7")
        monkeypatch.setattr(slot, "is_for_all_tables", lambda *_: True)
        monkeypatch.setattr(slot, "mark", lambda *_: (self.marked, 50))
        monkeypatch.setattr(slot, "oldest", lambda _: self.oldest)
        monkeypatch.setattr(tables.replica_identity, "set_configured", lambda *_: 0)
        monkeypatch.setattr(tables, "uncommitted", lambda *_, **__: [])
        monkeypatch.setattr(tables, "emptied", lambda _, wanted: self.emptied.extend(wanted) or [])
        monkeypatch.setattr(
            tables, "loads_of", lambda _, wanted, fresh: [TableLoad(*table, fresh=fresh) for table in wanted]
        )
        self.rounds = PeriodicChecks(settings)

    def ensure(self, *_) -> bool:
        if self.locked:
            raise psycopg.errors.LockNotAvailable
        return False

    def published(self, *_) -> list:
        return [table for table in TABLES if table[0] in self.members]

    def execute(self, statement: str, *_):
        return [(oid,) for oid, _, _ in TABLES] if "pg_class" in statement else []

    def transaction(self):
        return self

    def __enter__(self): ...

    def __exit__(self, *_): ...

    def go(self, later: float = operations.LOOK_S) -> None:
        self.now += later
        self.rounds.go(self.session)  # type: ignore[arg-type]

    @property
    def read(self) -> list[int]:
        return sorted(table.table_id for _, table in self.progress.tables())


def test_tables_made_since_the_task_was_opened_lack_rows_too(monkeypatch):
    one = One(monkeypatch)
    one.go()
    assert one.read == [OLD, LATE, NEVER_NAMED]
    assert [table[0] for table in one.emptied] == [OLD, LATE, NEVER_NAMED]
    assert (one.progress.loaded, one.progress.gap) == ([], False)
    one.emptied.clear()
    one.go()
    assert (one.emptied, len(one.progress.loads)) == ([], 1), "it is made good once"


def test_a_table_whose_first_rows_are_being_read_starts_over(monkeypatch):
    progress = SnapshotProgress(loaded=[OLD], published="cudt", altered="690 1 same", gap=True)
    progress.loads.append(SnapshotLoad("initial", "start", [TableLoad(LATE, "public", "late")]))
    one = One(monkeypatch, progress)
    one.go()
    assert one.read == [OLD, LATE, NEVER_NAMED]
    assert [load.id for load in progress.loads] == ["tables-50"]


def test_a_lock_that_keeps_the_publication_from_being_altered_keeps_no_gap(monkeypatch, caplog):
    one = One(monkeypatch, **{"publication.autocreate.mode": "filtered"})
    one.locked = True
    one.go()
    assert (one.progress.gap, one.read) == (False, [OLD, LATE, NEVER_NAMED])
    assert "waits for a lock of backend 7" in caplog.text


def test_what_lies_before_the_end_of_the_gap_comes_first(monkeypatch):
    one = One(monkeypatch)
    one.session.position.safe_lsn = 99
    one.go()
    assert one.progress.gap
    one.marked = 200
    one.seen = WHOLE._replace(altered="701 1 same")
    one.session.position.safe_lsn = 100
    one.go()
    assert one.progress.gap, "it was altered again"
    one.marked = 300
    one.session.position.safe_lsn = 200
    one.go(2 * rounds.AGAIN_S)
    assert not one.progress.gap


@pytest.mark.parametrize(
    ("config", "lost"),
    [
        ({}, []),
        ({"snapshot.mode": "no_data"}, ["old", "late"]),
        ({"snapshot.include.collection.list": "public\\.late"}, ["old"]),
    ],
)
def test_what_is_not_read_again_is_told(monkeypatch, caplog, config, lost):
    one = One(monkeypatch, **config)
    one.go()
    told = {record.getMessage() for record in caplog.records if "left out operations" in record.getMessage()}
    assert sorted(line.split("public.")[1].split(":")[0] for line in told if "are lost" in line) == sorted(lost)
    assert len(told) == 2, "of each table that was known, what becomes of it"
    assert len(one.progress.loaded) == len(TABLES) - len(one.read)
    assert "all rows are read again" not in caplog.text


def test_a_publication_that_was_altered_and_is_as_before_may_have_left_out_something(monkeypatch, caplog):
    one = One(monkeypatch, SnapshotProgress(loaded=[OLD], joined=1, left=False))
    one.go()
    assert (one.progress.published, one.progress.altered) == ("cudt", WHOLE.altered)
    moves = one.session.snapshot.loader.moves
    assert moves == 1, "what is known now is worth a position"
    one.go()
    assert one.session.snapshot.loader.moves == moves
    one.seen = WHOLE._replace(altered="701 1 another")
    one.go()
    one.go()
    assert caplog.text.count("was altered") == 1
    assert (one.session.snapshot.loader.moves, one.read) == (moves + 1, [])
    one.seen = WHOLE._replace(altered="702 1 another")
    one.go()
    assert one.read == [OLD, LATE, NEVER_NAMED]
    assert SnapshotProgress.from_json(one.progress.to_json()).altered == "702 1 another"


@pytest.mark.parametrize(
    ("stored", "now", "is_unexplained"),
    [
        ("700 1 same", "700 1 same", False),
        ("700 1 same", "701 1 same", True),
        ("700 1 same", "701 1 other", False),
        ("700 1 same", "701 2 other", True),
        ("700", "700 1 same", False),
        ("700", "701 1 same", True),
    ],
)
def test_a_difference_is_explained_by_one_alteration_and_none_is_not(stored, now, is_unexplained):
    assert operations.is_unexplained(stored, now) == is_unexplained


def test_an_operation_that_is_gone_is_stored_before_it_is_told(monkeypatch):
    one = One(
        monkeypatch,
        SnapshotProgress(loaded=[OLD], published="cudt", altered="690 1 same"),
        **{"position.lost.policy": "halt"},
    )
    one.seen = SeenPublication("cu", "700 1 other")
    one.go()
    assert one.progress.gap
    one.go()
    one.rounds.stored({"snapshot": one.progress.to_json()})
    with pytest.raises(CdcError) as caught:
        one.go()
    assert caught.value.where["operations"] == "delete, truncate"


def test_what_a_standby_answers_otherwise_is_asked_in_one_place():
    folder = Path(postgres.__file__).parent
    asked = {
        path.name
        for path in [*folder.rglob("*.py"), *folder.parent.glob("verify/*.py")]
        if any(name in path.read_text() for name in ("pg_current_wal", "pg_current_snapshot", "pg_current_xact"))
    }
    assert asked == {"server_functions.py"}


def test_transactions_that_were_open_end_before_tables_are_emptied(monkeypatch):
    one = One(monkeypatch)
    one.oldest = 50
    one.go()
    assert (one.emptied, one.progress.owed) == ([], True)
    one.oldest = 51
    one.go(rounds.OPEN_S)
    assert [table[0] for table in one.emptied] == [OLD, LATE, NEVER_NAMED]
    assert not one.progress.owed


def test_a_table_that_comes_while_another_is_waited_for_waits_alone(monkeypatch, caplog):
    one = One(
        monkeypatch, SnapshotProgress(loaded=[OLD, LATE], joined=7, left=True, published="cudt", altered="700 1 same")
    )
    one.members |= {OLD: 8, LATE: 7}
    del one.members[NEVER_NAMED]
    one.session.position.safe_lsn = 99
    one.session.scope.look_due = True
    one.go(2 * rounds.AGAIN_S)
    assert (one.progress.owed, one.read) == (True, [])
    # Both come, one of them from before, between this look and the next.
    one.members |= {LATE: 9, NEVER_NAMED: 10}
    one.marked, one.session.scope.look_due = 200, True
    one.session.position.safe_lsn = 100
    one.go(2 * rounds.AGAIN_S)
    assert (one.read, [table[0] for table in one.emptied], one.progress.loaded) == ([OLD], [OLD], [])
    assert (one.session.scope.returning, one.progress.owed) == (["public.late", "public.never_named"], True)
    assert one.progress.returning(one.members) == {LATE, NEVER_NAMED}, "also after a restart"
    one.go(2 * rounds.AGAIN_S)
    assert one.read == [OLD]
    one.session.position.safe_lsn = 200
    one.go(2 * rounds.AGAIN_S)
    assert (one.read, one.progress.owed) == ([OLD, LATE, NEVER_NAMED], False)
    assert [table[0] for table in one.emptied] == [OLD, LATE, NEVER_NAMED]
    told = [line for line in caplog.messages if line.startswith(tables.OUT)]
    assert [line.split()[6] for line in told] == ["table=public.old:", "table=public.late:"], told
