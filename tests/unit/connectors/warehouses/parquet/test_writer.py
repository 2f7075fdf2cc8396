"""The Parquet warehouse."""

from __future__ import annotations

import fcntl
import json
import shutil

import pyarrow as pa
import pytest
from cdcworker.connectors.api.sink import LedgerAccess
from cdcworker.connectors.arrow.assembler import Assembler
from cdcworker.connectors.arrow.envelope_schemas import EnvelopeSchemas
from cdcworker.connectors.warehouses.parquet.consistent_sets import WholeParquetWriter
from cdcworker.connectors.warehouses.parquet.dead_letters import ParquetOfflineTables
from cdcworker.connectors.warehouses.parquet.writer import SMALL_FILES_MAX, ParquetWriter
from cdcworker.connectors.warehouses.storage.local_disk import LocalDisk
from cdcworker.connectors.warehouses.table_state import FOLDER, KEPT, Manifest, Manifests, alter, parse
from cdcworker.connectors.warehouses.target_columns import OutputForm
from cdcworker.schemas.errors import CdcError
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from tests import change_streams
from tests.contract import column_scripts
from tests.contract import warehouses as contract
from tests.unit.connectors.arrow import test_reduce as scripts


@pytest.fixture
def open_writer(tmp_path):
    def make(epoch=(1, 0), **output):
        writer = ParquetWriter(LocalDisk(tmp_path), "sink", output=OutputForm(**output), buckets=2)
        writer.fence(epoch)
        return writer

    return make


class TestParquet(contract.Contract):
    @pytest.fixture(autouse=True)
    def root(self, tmp_path):
        self._root = tmp_path

    def drop_table(self, writer):
        shutil.rmtree(self._root / "public" / "orders")

    def letters(self):
        out = []
        for path in self._root.glob("_cdcworker/dead/sink/*/*.json"):
            said, (partition, offset) = json.loads(path.read_text()), path.stem.split("-")
            out.append((path.parent.name, int(partition), int(offset), said["code"], bytes.fromhex(said["value"])))
        return out


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(scripts.actions, scripts.cuts)
@example(scripts.THERE_AND_BACK, range(0, 200, 1))
@example(scripts.AGAIN, range(0, 200, 3))
def test_any_split_into_batches_gives_the_same_rows(tmp_path_factory, script, cuts):
    stream, model = change_streams.Stream(), change_streams.Model()
    scripts.play(script, stream, model)
    writer = ParquetWriter(LocalDisk(tmp_path_factory.mktemp("split")), "sink", buckets=3)
    writer.fence((1, 0))
    contract.run(stream, writer, cuts)
    found = contract.rows(writer, "id", "n", "a", "big")
    assert {(row[0],): list(row) for row in found} == model.rows


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(column_scripts.changes, max_size=12), st.lists(st.integers(0, 12)))
def test_any_changes_of_columns_leave_rows_as_the_source_has_them(tmp_path_factory, script, cuts):
    writer = ParquetWriter(LocalDisk(tmp_path_factory.mktemp("columns")), "sink", buckets=2)
    writer.fence((1, 0))
    column_scripts.play(script, writer, cuts)


def test_files_of_a_log_have_the_names_of_today_and_rows_the_default_of_their_time(tmp_path, open_writer):
    def shape(*names, default):
        texts = [change_streams.column(name, "string", "text", column_id=2 + at) for at, name in enumerate(names)]
        return change_streams.table(
            change_streams.ID, *texts, change_streams.column("d", "int", "integer", column_id=9, default=default)
        )

    stream, writer = change_streams.Stream(1), open_writer(log=True)
    before = change_streams.table(
        change_streams.ID,
        *(change_streams.column(name, "string", "text", column_id=id) for id, name in ((2, "a"), (3, "b"))),
    )
    stream.insert(before, (1, "A", "B"))
    contract.run(stream, writer, log=True)
    stream.insert(shape("a", "b", default=1), (2, "A", "B", 5))
    contract.run(stream, writer, log=True)
    stream.insert(shape("b", "a", default=2), (3, "A", "B", 6))
    contract.run(stream, writer, log=True)
    assert contract.rows(writer, "id", "b", "a", "d") == [(1, "A", "B", 1), (2, "A", "B", 5), (3, "A", "B", 6)]
    state = Manifests(LocalDisk(tmp_path), "public/orders").newest()
    found = [parquet.read_table(tmp_path / "public" / "orders" / file.path).to_pylist() for file in state.files]
    assert sorted((row["id"], row["b"], row["a"], row["d"]) for rows in found for row in rows) == [
        (1, "A", "B", 1),
        (2, "A", "B", 5),
        (3, "A", "B", 6),
    ]


def test_files_lose_the_values_of_a_column_that_another_of_its_name_and_type_replaces(tmp_path, open_writer):
    """Only one bucket has a change, and whoever reads the files of the others by their names must not find what was."""
    ids, before, after = (
        range(1, 9),
        contract.of(contract.TEXT),
        contract.of(change_streams.column("s", "string", "text", column_id=4)),
    )
    stream, writer = change_streams.Stream(1), open_writer(drop=True)
    stream.insert(contract.of(), (0,))
    contract.run(stream, writer)
    for id in ids:
        stream.insert(before, (id, f"old{id}"))
    contract.run(stream, writer)
    stream.update(after, (1, "new"))
    contract.run(stream, writer)
    state = Manifests(LocalDisk(tmp_path), "public/orders").newest()
    found = [parquet.read_table(tmp_path / "public" / "orders" / file.path).to_pylist() for file in state.files]
    values = {row["id"]: row.get("s") for rows in found for row in rows}
    assert values == {0: None, 1: "new", **dict.fromkeys(range(2, 9))}


@pytest.mark.parametrize("instead", ["nothing", "a file", "an empty folder"])
def test_a_folder_that_is_away_is_waited_for_and_no_other_is_begun(tmp_path, instead):
    root, stream = tmp_path / "lake", change_streams.Stream(1)
    stream.insert(change_streams.NARROW, (1, 2, "a", "b"))
    writer = ParquetWriter(LocalDisk(root), "sink")
    writer.fence((1, 0))
    contract.run(stream, writer)
    stream.insert(change_streams.NARROW, (2, 2, "a", "b"))
    batch = stream.assembler().build(change_streams.arrow(stream.records), writer.ledger(), 1)
    kept = root.rename(tmp_path / "kept")
    {"nothing": lambda: None, "a file": root.touch, "an empty folder": root.mkdir}[instead]()
    for step in (lambda: writer.apply(batch), lambda: writer.claim([contract.TOPIC])):
        with pytest.raises(CdcError) as caught:
            step()
        assert (caught.value.code, caught.value.kind) == ("spark.target_unreachable", "transient")
    {"nothing": lambda: None, "a file": root.unlink, "an empty folder": root.rmdir}[instead]()
    kept.rename(root)
    writer.claim([contract.TOPIC])
    assert dict(writer.ledger()) == {(contract.TOPIC, 0): 1}
    writer.apply(batch)
    assert contract.rows(writer, "id") == [(1,), (2,)]


@pytest.mark.parametrize("key", [(), (0,)])
def test_a_table_that_is_away_is_waited_for_and_not_begun_anew(tmp_path, open_writer, key):
    of, stream, writer = change_streams.table(change_streams.ID, key=key), change_streams.Stream(1), open_writer()
    stream.insert(of, (1,))
    contract.run(stream, writer)
    stream.insert(of, (2,))
    batch = stream.assembler().build(change_streams.arrow(stream.records), writer.ledger(), 1)
    table = tmp_path / "public" / "orders"
    table.rename(tmp_path / "kept")
    # The batch after which it is missed, one of a writer that has just read the ledger, and a start over.
    for step in (lambda: writer.apply(batch), writer.ledger, lambda: writer.apply(batch), claim(writer)):
        if step != writer.ledger:
            with pytest.raises(CdcError) as caught:
                step()
            assert (caught.value.code, caught.value.where) == ("spark.target_gone", {"topic": contract.TOPIC})
        else:
            step()
    assert not table.exists()
    (tmp_path / "kept").rename(table)
    writer.claim([contract.TOPIC])
    writer.apply(batch)
    assert contract.rows(writer, "id") == [(1,), (2,)]


@pytest.mark.parametrize("known", ["by Kafka", "by its claim", "by its state"])
def test_folders_without_a_state_are_no_table_to_begin_anew(tmp_path, open_writer, known):
    """A restore has brought no more of it so far."""
    stream, table = change_streams.Stream(1), tmp_path / "public" / "orders"
    stream.insert(change_streams.NARROW, (1, 2, "a", "b"))
    writer = open_writer()
    contract.run(stream, writer)
    if known != "by its state":
        writer = open_writer()
        writer.expect([contract.TOPIC])
    if known == "by its claim":
        writer.claim([contract.TOPIC])
    stream.insert(change_streams.NARROW, (2, 2, "a", "b"))
    offsets = {(contract.TOPIC, 0): stream.records[0]["offset"] + 1}
    batch = stream.assembler().build(change_streams.arrow(stream.records), offsets, 1)
    shutil.copytree(table, tmp_path / "kept")
    files = [path for path in table.rglob("*") if path.is_file()]
    for path in files:
        path.unlink()
    with pytest.raises(CdcError) as caught:
        writer.apply(batch)
    assert caught.value.code == "spark.target_gone"
    assert not [path for path in table.rglob("*") if path.is_file()]
    shutil.copytree(tmp_path / "kept", table, dirs_exist_ok=True)
    writer.apply(batch)
    assert contract.rows(writer, "id") == [(1,), (2,)]


@pytest.mark.parametrize(
    ("step", "key"), [(step, (0,)) for step in ("_part", "_write", "_write_tombstones", "_commit")] + [("_write", ())]
)
def test_of_a_table_that_is_moved_away_in_a_batch_no_folder_is_made(tmp_path, open_writer, monkeypatch, step, key):
    of, stream, writer = change_streams.table(change_streams.ID, key=key), change_streams.Stream(1), open_writer()
    for number in (1, 2):
        stream.insert(of, (number,))
    contract.run(stream, writer)
    if key:
        stream.delete(of, (2,))
    stream.insert(of, (3,))
    batch = stream.assembler().build(change_streams.arrow(stream.records), writer.ledger(), 1)
    table, inner = tmp_path / "public" / "orders", getattr(ParquetWriter, step)

    def moved(self, *args):
        if table.exists():
            table.rename(tmp_path / "kept")
        return inner(self, *args)

    monkeypatch.setattr(ParquetWriter, step, moved)
    with pytest.raises(CdcError) as caught:
        writer.apply(batch)
    monkeypatch.undo()
    assert (caught.value.code, caught.value.where) == ("spark.target_gone", {"topic": contract.TOPIC})
    assert not table.exists()
    (tmp_path / "kept").rename(table)
    writer.claim([contract.TOPIC])
    writer.apply(batch)
    assert len(contract.rows(writer, "id")) == (2 if key else 3)


@pytest.mark.parametrize("kind", [ParquetWriter, WholeParquetWriter])
@pytest.mark.parametrize(("aside", "schema"), [("public/aside", ""), ("public/zz", ""), ("public/orders", "z")])
def test_a_table_that_lies_elsewhere_is_gone_on_with_until_its_offsets_are_reset(tmp_path, kind, aside, schema):
    def start(schema, *seen):
        writer = kind(LocalDisk(tmp_path), "sink", schema=schema, buckets=2)
        writer.expect(seen)
        writer.fence((1, 0))
        return writer

    def end():
        return stream.records[-1]["offset"] + 1

    schema_home = f"{schema or 'public'}/orders"
    stream, home = change_streams.Stream(1), tmp_path / schema_home
    stream.insert(change_streams.NARROW, (1, 2, "a", "b"))
    contract.run(stream, start(""))
    (tmp_path / "public" / "orders").rename(tmp_path / aside)
    for number in (2, 3):
        stream.insert(change_streams.NARROW, (number, 2, "a", "b"))
        writer = start(schema, contract.TOPIC)
        contract.run(stream, writer)
        assert dict(writer.ledger()) == {(contract.TOPIC, 0): end()}
    assert not home.exists()
    for reader in (
        ParquetWriter(LocalDisk(tmp_path), "sink", schema=schema),
        writer if kind is ParquetWriter else None,
    ):
        assert reader is None or contract.rows(reader, "id") == [(1,), (2,), (3,)]
    alter(LocalDisk(tmp_path), LedgerAccess("sink", (1, 0)), {(contract.TOPIC, 0): None})
    contract.run(stream, start(schema))
    found = [Manifests(LocalDisk(tmp_path), folder).newest() for folder in (schema_home, aside)]
    assert [state.offsets for state in found] == [{"0": end()}, {}]
    assert sum(file.rows for file in found[0].files) == 3
    # What was put aside is not given offsets again.
    alter(LocalDisk(tmp_path), LedgerAccess("sink", (1, 0)), {(contract.TOPIC, 0): end() - 1})
    writer = start(schema, contract.TOPIC)
    contract.run(stream, writer)
    assert dict(writer.ledger()) == {(contract.TOPIC, 0): end()}
    # It does not stand for the table that was begun anew.
    home.rename(tmp_path / "kept")
    with pytest.raises(CdcError) as caught:
        start(schema, contract.TOPIC).claim([contract.TOPIC])
    assert caught.value.code == "spark.target_gone"


def test_of_two_tables_with_offsets_of_one_topic_a_person_says_which_it_is(tmp_path, open_writer):
    stream, other = change_streams.Stream(1), tmp_path / "public" / "copy"
    stream.insert(change_streams.NARROW, (1, 2, "a", "b"))
    contract.run(stream, open_writer())
    shutil.copytree(tmp_path / "public" / "orders", other)
    stream.insert(change_streams.NARROW, (2, 2, "a", "b"))
    writer = open_writer()
    for step in (claim(writer), lambda: ParquetOfflineTables(LocalDisk(tmp_path), "sink").state(contract.TOPIC)):
        with pytest.raises(CdcError) as caught:
            step()
        assert (caught.value.code, caught.value.kind) == ("spark.target_twice", "config")
        assert caught.value.where == {"topic": contract.TOPIC, "table": "public/copy", "other": "public/orders"}
    # Others of the sink's tasks go on.
    writer.claim(["shop.public.other"])
    other.rename(tmp_path / "copy")
    contract.run(stream, writer)
    assert contract.rows(writer, "id") == [(1,), (2,)]


def claim(writer):
    return lambda: writer.claim([contract.TOPIC])


@pytest.mark.parametrize("lock", ["lock", "dead/sink/lock"])
def test_a_lock_that_somebody_keeps_is_not_waited_for_forever(tmp_path, open_writer, monkeypatch, lock):
    stream, writer = change_streams.Stream(1), open_writer()
    stream.insert(change_streams.NARROW, (1, 2, "a", "b"))
    stream.records[0]["value"] = b"broken"
    assembler = Assembler(EnvelopeSchemas(stream.schemas, wait_s_max=0), tolerant=True)
    steps = {
        "lock": lambda: writer.fence((1, 0)),
        "dead/sink/lock": lambda: writer.apply(assembler.build(change_streams.arrow(stream.records), {}, 1)),
    }
    monkeypatch.setattr("cdcworker.connectors.warehouses.storage.local_disk.LOCK_S_MAX", 0.1)
    held = tmp_path / "_cdcworker" / lock
    held.parent.mkdir(parents=True, exist_ok=True)
    with held.open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(CdcError) as caught:
            steps[lock]()
        assert (caught.value.code, caught.value.where) == ("spark.target_locked", {"sink": "sink"})
    monkeypatch.undo()
    steps[lock]()


def test_a_state_is_not_gone_on_from_where_its_folder_is_empty(open_writer):
    stream, writer = change_streams.Stream(1), open_writer()
    stream.insert(change_streams.NARROW, (1, 2, "a", "b"))
    contract.run(stream, writer)
    table = manifests_of(writer)
    state = table.newest()
    table.files.remove(f"{table.folder}/{FOLDER}/{name}" for name in table._names())
    with pytest.raises(CdcError) as caught:
        table.commit(state)
    assert caught.value.code == "spark.target_gone"
    assert table.newest() is None


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OSError(28, "full"), "spark.target_unreachable"),
        (OSError(116, "stale"), "spark.target_unreachable"),
        (OSError(30, "read only"), "spark.target_unreachable"),
        (OSError(13, "denied"), "spark.target_rights"),
    ],
)
def test_what_a_file_system_refuses_has_a_code(open_writer, monkeypatch, error, code):
    stream, writer = change_streams.Stream(1), open_writer()
    stream.insert(change_streams.NARROW, (1, 2, "a", "b"))

    def refuse(*_):
        raise error

    monkeypatch.setattr("cdcworker.connectors.warehouses.parquet.writer.save", refuse)
    with pytest.raises(CdcError) as caught:
        contract.run(stream, writer)
    assert caught.value.code == code
    assert caught.value.where == {"sink": "sink"}


def test_of_two_writers_with_one_epoch_the_second_notices(open_writer):
    stream = change_streams.Stream(1)
    stream.insert(change_streams.NARROW, (1, 2, "a", "b"))
    one, other = open_writer(), open_writer()
    contract.run(stream, one)
    other.claim([contract.TOPIC])
    stream.insert(change_streams.NARROW, (2, 2, "a", "b"))
    batch = stream.assembler().build(change_streams.arrow(stream.records), one.ledger(), 1)
    later = stream.assembler().build(change_streams.arrow(stream.records), other.ledger(), 1)
    other._states[contract.TOPIC] = manifests_of(other).newest()
    one.apply(batch)
    with pytest.raises(CdcError) as caught:
        other.apply(later)
    assert caught.value.code == "spark.ledger_moved"
    assert contract.rows(one, "id") == [(1,), (2,)]


def test_files_of_old_states_and_of_writers_that_died_go_away(tmp_path, open_writer):
    stream, writer = change_streams.Stream(1), open_writer()
    for number in range(12):
        stream.insert(change_streams.NARROW, (number, 2, "a", "b"))
        contract.run(stream, writer)
    folder = tmp_path / writer._folder(contract.TOPIC, ())
    (folder / "left-behind.parquet").write_bytes(b"")
    open_writer(epoch=(2, 0)).claim([contract.TOPIC])
    assert not (folder / "left-behind.parquet").exists()
    assert len(list((folder / "_cdc").glob("*.json"))) == KEPT
    assert len(contract.rows(writer, "id")) == 12


def test_many_small_files_of_a_log_become_one(open_writer):
    log = change_streams.table(change_streams.column("n", "int", "integer"), key=())
    stream, writer = change_streams.Stream(1), open_writer()
    for number in range(SMALL_FILES_MAX + 3):
        stream.insert(log, (number,))
        contract.run(stream, writer)
    assert len(manifests_of(writer).newest().files) < 5
    assert contract.rows(writer, "n") == sorted([(number,) for number in range(SMALL_FILES_MAX + 3)], key=repr)


def test_offsets_can_be_altered_which_fences_off_tasks_from_before(tmp_path, open_writer):
    stream, writer = change_streams.Stream(1), open_writer()
    stream.insert(change_streams.NARROW, (1, 2, "a", "b"))
    contract.run(stream, writer)
    alter(LocalDisk(tmp_path), LedgerAccess("sink", (1, 5)), {(contract.TOPIC, 0): 0})
    assert dict(open_writer(epoch=(2, 0)).ledger()) == {(contract.TOPIC, 0): 0}
    stream.insert(change_streams.NARROW, (2, 2, "a", "b"))
    with pytest.raises(CdcError) as caught:
        writer.apply(stream.assembler().build(change_streams.arrow(stream.records), {}, 1))
    assert caught.value.kind == "fenced"
    with pytest.raises(CdcError):
        alter(LocalDisk(tmp_path), LedgerAccess("sink", (1, 4)), None)


def test_offsets_that_go_back_forget_letters_that_stand_behind_them():
    state = Manifest("sink", "t", (1, 0), offsets={"0": 10, "1": 5}, redriven=((0, 3), (0, 7), (1, 2)))
    assert state.altered({("t", 0): 5}).redriven == ((0, 3), (1, 2))
    assert state.altered({("t", 0): None}).redriven == ((1, 2),)
    assert state.altered(None).redriven == ()


def manifests_of(writer):
    return Manifests(writer._storage, writer._folder(contract.TOPIC))


def batches(writer, count):
    stream = change_streams.Stream(1)
    for number in range(count):
        stream.insert(change_streams.NARROW, (number, 2, "a", "b"))
        contract.run(stream, writer)
        yield manifests_of(writer)


def test_a_state_from_long_ago_is_not_gone_on_from_although_its_number_is_free_again(open_writer):
    writer, stale = open_writer(), None
    for manifests in batches(writer, KEPT + 4):
        stale = stale or manifests.newest()
    with pytest.raises(CdcError) as caught:
        manifests.commit(stale)
    assert caught.value.code == "spark.ledger_moved"
    assert len(contract.rows(writer, "id")) == KEPT + 4


def test_two_who_sweep_one_folder_do_not_stop_each_other(tmp_path, open_writer):
    writer = open_writer()
    *_, manifests = batches(writer, 4)
    folder = tmp_path / manifests.folder
    (folder / "left-behind.parquet").write_bytes(b"")
    # It was listed, and is gone.
    (folder / FOLDER / "000000000003.json").unlink()
    (folder / FOLDER / "000000000003.json").symlink_to("gone")
    manifests.sweep(manifests.newest(), everything=True)
    assert not (folder / "left-behind.parquet").exists()
    assert len(contract.rows(writer, "id")) == 4


def test_a_state_of_a_newer_version_is_read_by_what_is_known_of_it():
    state = Manifest("sink", contract.TOPIC, (1, 2), offsets={"0": 7}, applied={"0": ("ff", 1)}, topic_id="id")
    text = json.dumps({**json.loads(state.text()), "later": [1]})
    assert parse(text) == state


def test_what_somebody_else_puts_beside_the_files_of_a_table_is_no_part_of_it(tmp_path, open_writer):
    stream, writer, folder = change_streams.Stream(1), open_writer(), tmp_path / "public" / "orders"
    for number in (1, 2):
        stream.insert(change_streams.NARROW, (number, 1, "a", "b"))
    contract.run(stream, writer)
    state = manifests_of(open_writer()).newest()
    theirs = parquet.read_table(folder / state.files[0].path)
    theirs = theirs.append_column("mine", pa.array(["theirs"] * theirs.num_rows))
    parquet.write_table(theirs, folder / "theirs.parquet")
    (folder / "notes.txt").write_text("theirs")
    stream.update(change_streams.NARROW, (1, 2, "c", "b"))
    contract.run(stream, open_writer(epoch=(1, 0)))
    assert contract.rows(writer, "id", "n", "a") == [(1, 2, "c"), (2, 1, "a")]
    assert "mine" not in contract.columns(writer)
    assert (folder / "notes.txt").read_text() == "theirs"
    # A young file is nobody's yet; an old one, or whatever a new owner finds, goes.
    assert (folder / "theirs.parquet").exists()
    contract.run(stream, open_writer(epoch=(2, 0)))
    assert not (folder / "theirs.parquet").exists()


def test_a_stored_state_keeps_the_names_of_its_members():
    state = Manifest("sink", "topic", (1, 2), tombstones="tombstones-1.parquet")
    assert json.loads(state.text())["graves"] == "tombstones-1.parquet"
    assert list(json.loads(state.text()))[11:13] == ["graves", "at_ms"]
    assert parse(state.text()) == state
