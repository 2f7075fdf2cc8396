from __future__ import annotations

import itertools

import pytest
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.format_encoder import make_encoder
from cdcworker.schemas.record_format import ConnectJsonFormat, FlatFormat, RecordFormat
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests import change_streams
from tests.change_streams import NARROW

BIG = 3
actions = st.lists(
    st.tuples(
        st.sampled_from(["put", "put", "toast", "toast", "delete", "move", "move_toast", "truncate", "toast_a"]),
        st.integers(0, 4),
        st.integers(0, 4),
    ),
    max_size=40,
)

cuts = st.one_of(st.lists(st.integers(0, 80), max_size=5), st.just(range(200)), st.just(range(0, 200, 2)))
"""Where batches end: anywhere, behind every record, behind every second."""

THERE_AND_BACK = [("put", 0, 0), ("put", 0, 0), ("move_toast", 0, 1), ("move_toast", 1, 0)]
AGAIN = [("put", 0, 0), ("put", 0, 0), ("move_toast", 0, 1), ("put", 0, 0), ("move_toast", 0, 2)]
ROUND = [("put", 0, 0), ("move", 0, 1), ("move", 1, 0), ("move_toast", 0, 1)]
"""A row that changes its key twice, a key that a row leaves a second time, the same way gone twice: around the ends of
batches."""


def moving(test):
    """Both of these with batches of every size."""
    for script in (THERE_AND_BACK, AGAIN, ROUND):
        for size in range(1, 9):
            test = example(script, range(0, 200, size))(test)
    return test


def play(script, stream, model, truncates=True, moves=True):
    """Turn a script into a stream that a source could send, and keep the model beside it."""
    for step, (what, number, other) in enumerate(script):
        key, row = (number,), (number, step, f"a{step}", f"big{step}")
        held = key in model.rows
        if what == "truncate":
            if not truncates or step % 3:
                continue
            stream.truncate(NARROW)
            model.rows.clear()
        elif what == "delete":
            if held:
                stream.delete(NARROW, key)
                del model.rows[key]
        elif what.startswith("move"):
            new = (other,)
            if not held or new in model.rows or not moves:
                continue
            unchanged = (BIG,) if what == "move_toast" else ()
            row = (other, *row[1:])
            stream.move(NARROW, key, row, unchanged)
            model.move(key, new, row, unchanged)
        elif not held:
            stream.insert(NARROW, row, "r" if step % 4 == 0 else "c")
            model.insert(key, row)
        else:
            unchanged = {"toast": (BIG,), "toast_a": (2, BIG)}.get(what, ())
            stream.update(NARROW, row, unchanged)
            model.update(key, row, unchanged)


def applied(stream, cuts):
    """Everything through the assembler, cut into batches at the given records."""
    warehouse, assembler = change_streams.MemoryWarehouse(), stream.assembler()
    edges = [0, *sorted({min(cut, len(stream.records)) for cut in cuts}), len(stream.records)]
    for number, (start, end) in enumerate(itertools.pairwise(edges)):
        part = stream.records[start:end]
        if part:
            warehouse.apply(assembler.build(change_streams.arrow(part), warehouse.offsets, number))
    return warehouse


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(actions, cuts)
@moving
def test_reduced_batches_leave_what_one_change_after_the_other_leaves(script, cuts):
    stream, model = change_streams.Stream(), change_streams.Model()
    play(script, stream, model)
    warehouse = applied(stream, cuts)
    assert warehouse.rows(NARROW) == model.rows
    assert warehouse.orphans == 0


reads = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 9)), max_size=12)
"""Of which partition how many records come next."""


def read_apart(stream, reads):
    """Each partition at a speed of its own, in the end all of it."""
    left = {
        number: [r for r in stream.records if r["partition"] == number] for number in range(change_streams.PARTITIONS)
    }
    warehouse, assembler = change_streams.MemoryWarehouse(), stream.assembler()
    rest = [(number, len(left[number])) for number in left]
    for number, count in [*reads, *rest]:
        part, left[number] = left[number][:count], left[number][count:]
        if part:
            warehouse.apply(assembler.build(change_streams.arrow(part), warehouse.offsets, 0))
    return warehouse


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(actions, reads)
def test_partitions_may_be_read_at_different_speeds(script, reads):
    stream, model = change_streams.Stream(), change_streams.Model()
    play(script, stream, model, truncates=False, moves=False)
    assert read_apart(stream, reads).rows(NARROW) == model.rows


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(actions, reads)
def test_rows_that_bring_all_their_columns_move_between_partitions_at_different_speeds(script, reads):
    stream, model = change_streams.Stream(), change_streams.Model()
    whole = {"move_toast": "move", "toast": "put", "toast_a": "put"}
    play([(whole.get(what, what), *rest) for what, *rest in script], stream, model)
    warehouse = read_apart(stream, reads)
    assert warehouse.rows(NARROW) == model.rows
    assert warehouse.orphans == 0


def partition_of(key):
    stream = change_streams.Stream()
    stream.insert(NARROW, (key, 0, "", ""))
    return stream.records[0]["partition"]


OLD = 0
NEW = next(key for key in range(1, 20) if partition_of(key) != partition_of(OLD))


def moved_between_partitions(moves=1):
    """A row goes to a key of another partition, and back, without the large value that it keeps."""
    stream, model = change_streams.Stream(), change_streams.Model()
    script = [("put", OLD, 0), ("put", OLD, 0)]
    script += [("move_toast", *((OLD, NEW) if number % 2 == 0 else (NEW, OLD))) for number in range(moves)]
    play(script, stream, model)
    assert len({record["partition"] for record in stream.records}) == 2
    return stream, model


@pytest.mark.parametrize("moves", [1, 2, 3])
@pytest.mark.parametrize("size", range(1, 12))
def test_a_value_that_was_not_sent_goes_with_its_row_to_another_partition_in_any_batches(moves, size):
    stream, model = moved_between_partitions(moves)
    warehouse = applied(stream, range(0, 40, size))
    assert warehouse.rows(NARROW) == model.rows
    assert warehouse.orphans == 0


@pytest.mark.parametrize("behind", [1, 2, 3, 4])
def test_such_a_row_finds_its_value_also_behind_the_delete_of_its_old_key(behind):
    """The old key's partition is ahead, with the delete and its tombstone or not."""
    stream, model = moved_between_partitions()
    warehouse = read_apart(stream, [(partition_of(OLD), behind), (partition_of(OLD), 9)])
    assert warehouse.rows(NARROW) == model.rows
    assert warehouse.orphans == 0


def test_such_a_row_that_comes_before_its_old_one_is_left_out_and_counted():
    stream, _ = moved_between_partitions()
    warehouse = read_apart(stream, [(partition_of(NEW), 9)])
    assert warehouse.rows(NARROW) == {}
    assert warehouse.orphans == 1


def test_records_below_the_ledger_are_dropped():
    stream = change_streams.Stream(1)
    for number in range(5):
        stream.insert(NARROW, (number, 1, "a", "b"))
    offset = stream.records[3]["offset"]
    batch = stream.assembler().build(change_streams.arrow(stream.records), {("shop.public.orders", 0): offset}, 1)
    assert batch.tables[0].upserts["id"].to_pylist() == [3, 4]
    assert batch.offsets == {("shop.public.orders", 0): (offset, stream.records[-1]["offset"] + 1)}


def test_a_batch_below_the_ledger_holds_no_tables():
    stream = change_streams.Stream(1)
    stream.insert(NARROW, (1, 1, "a", "b"))
    batch = stream.assembler().build(change_streams.arrow(stream.records), {("shop.public.orders", 0): 99}, 1)
    assert (list(batch.tables), dict(batch.offsets)) == ([], {})


def test_an_update_without_its_row_is_counted_and_not_written():
    stream = change_streams.Stream()
    stream.update(NARROW, (1, 2, "a", None), (BIG,))
    warehouse = applied(stream, [])
    assert warehouse.rows(NARROW) == {}
    assert warehouse.orphans == 1


def test_a_lone_tombstone_deletes_the_row():
    stream = change_streams.Stream(1)
    stream.insert(NARROW, (1, 1, "a", "b"))
    stream.delete(NARROW, (1,))
    del stream.records[1]
    assert applied(stream, []).rows(NARROW) == {}
    assert applied(stream, [1]).rows(NARROW) == {}


def test_a_new_schema_in_the_middle_splits_the_batch():
    wider = change_streams.table(*NARROW.columns, change_streams.column("extra", "string", "text"))
    stream = change_streams.Stream(1)
    stream.insert(NARROW, (1, 1, "a", "b"))
    stream.insert(NARROW, (2, 1, "a", "b"))
    stream.insert(wider, (1, 2, "a", "b", "new"), "u")
    batch = stream.assembler().build(change_streams.arrow(stream.records), {}, 1)
    assert [part.upserts.num_rows for part in batch.tables] == [2, 1]
    assert batch.tables[1].upserts["extra"].to_pylist() == ["new"]


def test_schemas_that_change_over_many_partitions_make_one_run_each():
    wider = change_streams.table(*NARROW.columns, change_streams.column("extra", "string", "text"))
    stream = change_streams.Stream(3)
    for number in range(20):
        stream.insert(NARROW, (number, 1, "a", "b"))
    for number in range(20):
        stream.insert(wider, (number, 2, "a", "b", "new"), "u")
    batch = stream.assembler().build(change_streams.arrow(stream.records), {}, 1)
    assert [part.upserts.num_rows for part in batch.tables] == [20, 20]


def test_a_move_whose_halves_lie_in_two_batches_keeps_what_was_not_sent():
    stream, model = change_streams.Stream(), change_streams.Model()
    play([("put", 0, 0), ("toast", 0, 0), ("move_toast", 0, 1)], stream, model)
    for cuts in ([], [1], [2], [3], [4], range(9)):
        assert applied(stream, cuts).rows(NARROW) == model.rows


def test_a_record_that_is_cut_short_is_named_by_its_place():
    stream = change_streams.Stream(1)
    stream.insert(NARROW, (1, 1, "a", "b"))
    stream.insert(NARROW, (2, 1, "a", "b"))
    stream.records[1]["value"] = stream.records[1]["value"][:-3]
    with pytest.raises(CdcError) as caught:
        stream.assembler().build(change_streams.arrow(stream.records), {}, 1)
    assert caught.value.code == "spark.undecodable"
    where = {"topic": "shop.public.orders", "partition": 0, "offset": stream.records[1]["offset"]}
    assert caught.value.where == where


def test_an_unknown_schema_id_is_named_with_its_place():
    stream = change_streams.Stream(1)
    stream.insert(NARROW, (1, 1, "a", "b"))
    stream.records[0]["value"] = b"\0\0\0\0\7" + stream.records[0]["value"][5:]
    with pytest.raises(CdcError) as caught:
        stream.assembler().build(change_streams.arrow(stream.records), {}, 1)
    assert caught.value.code == "spark.unknown_schema"
    assert caught.value.where["schema"] == 7


def test_a_table_without_a_key_keeps_every_change():
    log = change_streams.table(change_streams.column("n", "int", "integer"), key=())
    stream = change_streams.Stream(1)
    stream.insert(log, (1,))
    stream.emit(stream.change("d", log, before=(1,)))
    batch = stream.assembler().build(change_streams.arrow(stream.records), {}, 1)
    rows = batch.tables[0].upserts.to_pylist()
    assert [(row["n"], row["_cdc_op"]) for row in rows] == [(1, "c"), (1, "d")]


def test_a_header_that_holds_no_key_is_named_by_its_place():
    stream = change_streams.Stream(1)
    stream.insert(NARROW, (1, 1, "a", "b"))
    stream.records[0]["headers"] = [{"key": "__debezium.oldkey", "value": b"x"}]
    with pytest.raises(CdcError) as caught:
        stream.assembler().build(change_streams.arrow(stream.records), {}, 1)
    assert caught.value.code == "spark.undecodable"


@pytest.mark.parametrize(
    ("form", "says"),
    [
        (RecordFormat(value=ConnectJsonFormat()), "the values of the topic are JSON"),
        (RecordFormat(value=ConnectJsonFormat(schemas=False)), "the values of the topic are JSON"),
        (RecordFormat(key=ConnectJsonFormat()), "the keys of the topic are JSON"),
        (RecordFormat(flat=FlatFormat()), "rows without Debezium's envelope"),
    ],
)
def test_topics_of_another_form_are_refused_by_what_they_hold(form, says):
    stream = change_streams.Stream(1)
    stream.encoder = make_encoder(form, change_streams.PREFIX, stream.schemas.register)
    stream.insert(NARROW, (1, 1, "a", "b"))
    with pytest.raises(CdcError) as caught:
        stream.assembler().build(change_streams.arrow(stream.records), {}, 1)
    assert caught.value.code == "spark.wire_format"
    assert caught.value.where["topic"] == stream.records[0]["topic"]
    assert says in caught.value.message
    assert "JsonConverter" in caught.value.hint


def test_a_truncate_has_the_key_of_the_rows_beside_it_where_its_topic_has_no_subject():
    stream = change_streams.Stream(1)
    stream.truncate(NARROW)
    stream.insert(NARROW, (1, 1, "a", "b"))
    for record in stream.records:
        record["topic"] = f"mirror.{record['topic']}"
    batch = stream.assembler().build(change_streams.arrow(stream.records), {}, 1)
    assert [(part.key, part.floor is None) for part in batch.tables] == [(("id",), False), (("id",), True)]
