"""Rows of the signal table: heard once each, however their transaction is cut, and what each kind of them does."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
from cdcworker.connectors.capture.config.filters import TableFilters
from cdcworker.connectors.capture.snapshot.chunk_scheduler import ChunkScheduler, ReadLimits
from cdcworker.connectors.capture.snapshot.jobs import SnapshotJobs
from cdcworker.connectors.capture.snapshot.progress import SnapshotLoad, SnapshotProgress, TableLoad
from cdcworker.connectors.capture.stream.signal_table import MESSAGE_MAX, SignalStage, SignalTable
from cdcworker.connectors.postgres.decode import native_path
from cdcworker.connectors.postgres.errors import CAPTURE
from cdcworker.connectors.postgres.types.mapping import HandlingModes

from tests.unit.connectors.postgres import messages as m
from tests.unit.connectors.postgres.oracle import Registry, decoder, description, native, needs_native
from tests.unit.connectors.postgres.snapshot.test_watermark_snapshot import FakeReader, FakeReaderPool

COLUMNS = [("id", 25, -1, True, True), ("type", 25, -1, False, True), ("data", 25, -1, False, False)]
OTHERS = [("id", 23, True), ("v", 25, False)]
ORIGIN = m.frame(b"O" + (5).to_bytes(8, "big") + b"elsewhere\0")


def signal(identity: bytes) -> bytes:
    return m.insert(1, identity, b"log", b"{}")


MESSAGES = [
    m.begin(1000), ORIGIN, m.relation(2, OTHERS, name="u"), description(COLUMNS),
    signal(b"a"), m.insert(2, b"1", b"x"), m.update(1, [b"a", b"log", b"changed"]), signal(b"b"),
    m.insert(2, b"2", b"x"), m.delete(1, [b"a", None, None]), signal(b"c"), m.commit(1000),
]  # fmt: skip
ROWS = 7
WAYS = [pytest.param(False, id="python"), pytest.param(True, id="native", marks=needs_native)]


def heard(*, fast: bool, resume_lsn: int = 0, part: tuple[int, int] | None = None, wanted: bool = True):
    """(ids that the listener was told of, messages that were handed on)."""
    found: list = []
    changes = decoder(COLUMNS, HandlingModes(), TableFilters())
    changes.listeners[1] = lambda plan, row: found.append(row[0])
    changes.resume_lsn, changes.resume_part, changes.want_origin = resume_lsn, part, lambda name: wanted
    feed = changes.feed
    if fast:
        assert native
        quick = native_path.NativePath(changes, Registry(), native)
        feed = quick.feed
    for data in MESSAGES:
        feed(data)
    if fast:
        quick.flush()
    handed = sum(len(item.records) if hasattr(item, "records") else 1 for item in changes.out)
    return found, handed


@pytest.mark.parametrize("fast", WAYS)
@pytest.mark.parametrize("done", range(1, ROWS + 1))
def test_who_resumes_inside_a_transaction_hears_all_its_signals_and_hands_on_the_rest(fast, done):
    assert heard(fast=fast) == (["a", "b", "c"], ROWS)
    assert heard(fast=fast, part=(1000, done)) == (["a", "b", "c"], ROWS - done)


@pytest.mark.parametrize("fast", WAYS)
@pytest.mark.parametrize("resumed", [{"resume_lsn": 1000}, {"wanted": False}, {"wanted": False, "part": (1000, 2)}])
def test_of_what_is_dropped_as_a_whole_nothing_is_heard(fast, resumed):
    assert heard(fast=fast, **resumed) == ([], 0)


class Stage:
    """A session as signals see it: two loads on demand, and one that is not."""

    def __init__(self) -> None:
        tables = [TableLoad(n, "public", name, fresh=False) for n, name in enumerate("abc", 1)]
        self.progress = SnapshotProgress(
            loads=[
                SnapshotLoad("initial", "start", [TableLoad(9, "public", "a")]),
                SnapshotLoad("one", "signal", tables[:2]),
                SnapshotLoad("two", "request", tables[2:]),
            ]
        )
        self.pool = FakeReaderPool(FakeReader([(1, "a")], [(1, "a")], [(1, "a")], [(1, "a")]))
        self.loader = ChunkScheduler(self.progress, self.pool, ReadLimits(threads=4), CAPTURE)
        self.host = SimpleNamespace(scheduler=self.loader, errors=CAPTURE)
        self.signals = SignalTable()

    def say(self, kind: str, data: str, identity: str = "s") -> None:
        self.signals.take(None, (identity, kind, data))
        self.signals.carry_out(SignalStage(self.host, 0x1_0000_00FF, "1/FF"))

    def told(self, identity: str) -> dict:
        reports = SnapshotJobs(tuple, lambda: 100.0).report(SnapshotProgress.from_json(self.progress.to_json()))
        found = next(report for report in reports if report["id"] == identity)
        names = ("state", "tables_done", "tables_cancelled", "tables_total")
        return {name: found[name] for name in names}


def test_a_table_that_is_not_wanted_any_more_is_not_counted_as_read():
    stage = Stage()
    stage.say("stop-snapshot", '{"data-collections": ["public.b"]}')
    assert stage.told("one") == {"state": "RUNNING", "tables_done": 0, "tables_cancelled": 1, "tables_total": 2}
    assert [table.name for table in stage.progress.loads[1].tables] == ["a"]
    stage.loader.finish(*next(pair for pair in stage.progress.tables() if pair[0].id == "one"))
    assert stage.told("one") == {"state": "COMPLETED", "tables_done": 1, "tables_cancelled": 1, "tables_total": 2}
    assert stage.progress.loaded == [1], "the cancelled one is not among them"
    assert stage.told("initial")["tables_cancelled"] == 0


def test_a_load_ends_as_cancelled_with_the_last_table_that_is_not_wanted_any_more():
    stage = Stage()
    stage.loader.finish(*next(pair for pair in stage.progress.tables() if pair[1].name == "b"))
    stage.loader.order_reads()
    stage.pool.work()
    stage.loader.take_results()
    stage.loader.order_reads()
    before = stage.loader.moves
    assert {window.load.id for window in stage.loader.windows} == {"initial", "one", "two"}
    stage.say("stop-snapshot", r'{"data-collections": ["public\\.[abc]"]}')
    assert stage.loader.moves > before
    assert {window.load.id for window in stage.loader.windows} == {"initial"}, "nothing is read on of them"
    assert stage.told("one") == {"state": "CANCELLED", "tables_done": 1, "tables_cancelled": 1, "tables_total": 2}
    assert stage.told("two") == {"state": "CANCELLED", "tables_done": 0, "tables_cancelled": 1, "tables_total": 1}
    assert [load.id for load in stage.progress.loads] == ["initial"]


def test_all_tables_of_a_load_that_is_cancelled_as_a_whole_are_counted():
    stage = Stage()
    stage.say("stop-snapshot", "{}")
    assert stage.told("one") == {"state": "CANCELLED", "tables_done": 0, "tables_cancelled": 2, "tables_total": 2}


@pytest.mark.parametrize("names", ['["public.a", "("]', "[7]", '["public.z"]'])
def test_names_that_mean_no_table_stop_nothing(names, caplog):
    stage = Stage()
    stage.say("stop-snapshot", f'{{"data-collections": {names}}}')
    assert [len(load.tables) for load in stage.progress.loads] == [1, 2, 1]
    assert ("left out" in caplog.text) == ("z" not in names)


def lines(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.getMessage().startswith("signal says")]


def test_a_message_goes_to_the_log_with_the_place_of_its_commit(caplog):
    caplog.set_level(logging.INFO)
    Stage().say("log", '{"message": "deployed at {}, {}"}')
    assert lines(caplog) == ["signal says: deployed at 1/FF, {}"]


def test_a_message_is_one_line_of_a_length_that_is_bounded(caplog):
    caplog.set_level(logging.INFO)
    Stage().say("log", r'{"message": "a\nERROR forged\r\u001b[2J\u2028\u202eb %s"}')
    assert lines(caplog) == ["signal says: a ERROR forged  [2J  b %s"]
    caplog.clear()
    Stage().say("log", '{"message": "' + "x" * 100_000 + '{}"}')
    assert lines(caplog) == ["signal says: " + "x" * MESSAGE_MAX]


@pytest.mark.parametrize("data", ["{}", '{"message": ["a", "secret"]}', '{"note": "secret"}'])
def test_a_signal_without_a_message_says_that_it_has_none_and_nothing_of_what_it_has(data, caplog):
    caplog.set_level(logging.INFO)
    Stage().say("log", data, "mine")
    assert lines(caplog) == []
    assert "signal has no message and is left out id=mine" in caplog.text
    assert "secret" not in caplog.text


@pytest.mark.parametrize("key", ["", ', "surrogate-key": "code"'])
def test_a_surrogate_key_is_said_to_be_left_out(key, caplog, monkeypatch):
    begun = []
    monkeypatch.setattr("cdcworker.connectors.capture.snapshot.jobs.begin", lambda *args: begun.append(args[1:]))
    Stage().say("execute-snapshot", f'{{"data-collections": ["public.a"]{key}}}', "mine")
    assert begun == [("mine", "signal", {"tables": ["public.a"]})]
    assert ("surrogate-key is left out" in caplog.text) == bool(key)
