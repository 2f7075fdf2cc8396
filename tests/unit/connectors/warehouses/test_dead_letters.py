"""Dead letters as records again: which go together, and what their columns are called now."""

from __future__ import annotations

import pyarrow as pa
import pytest
from cdcworker.connectors.api.sink import DeadLetterFilter, LedgerAccess
from cdcworker.connectors.api.table_batch import KEY, POSITION, TableBatch
from cdcworker.connectors.spark.connector import SparkSink
from cdcworker.connectors.warehouses.dead_letters import (
    AT_ONCE,
    RedriveResult,
    StoredLetter,
    applied,
    follows,
    headers_of,
    headers_text,
    of_one_step,
    of_today,
    table_of,
    waves,
)
from cdcworker.schemas.errors import CdcError

FRAME = b"\x00\x00\x00\x00\x01"
OTHER_FRAME = b"\x00\x00\x00\x00\x02"


def letter(offset, key=b"k", value=b"v", headers=(), partition=0):
    return StoredLetter("t", partition, offset, None if key is None else FRAME + key, value, headers)


def places(parts):
    return [[each.offset for each in part] for part in parts]


def test_no_key_is_twice_in_one_wave():
    letters = [letter(0, b"a"), letter(1, b"b"), letter(2, b"a"), letter(3, b"c"), letter(4, None), letter(5, b"c")]
    assert places(waves(letters)) == [[0, 1], [2, 3, 4], [5]]
    assert places(waves([letter(0), StoredLetter("t", 0, 1, OTHER_FRAME + b"k", b"v", ())])) == [[0], [1]]
    assert list(waves([])) == []


def test_a_key_change_is_of_both_its_keys():
    moved = letter(1, b"b", headers=[{"key": "__debezium.oldkey", "value": FRAME + b"a"}])
    assert places(waves([letter(0, b"a"), moved, letter(2, b"c")])) == [[0], [1, 2]]


def test_a_tombstone_follows_the_delete_of_its_key_alone():
    assert follows(letter(1, value=None), letter(0))
    assert not follows(letter(1, value=None), letter(0, b"other"))
    assert not follows(letter(1, value=None), letter(0, partition=1))
    assert not follows(letter(1), letter(0))
    assert not follows(letter(1, value=None), None)


def test_headers_come_back_as_they_were():
    kept = headers_text([("cdc.unchanged", b"3"), ("x", None)])
    headers = headers_of([["cdc.unchanged", "33"], ["x", None]])
    assert kept == '[["cdc.unchanged", "33"], ["x", null]]'
    table = table_of([letter(0, headers=headers), letter(1)])
    assert table["headers"].to_pylist() == [headers, None]


def batch(*fields, **more):
    members = [{"name": name, "type": "long", "cdc.colid": id} for id, name in fields]
    columns = {name: pa.array([1]) for _, name in fields}
    own = {KEY: pa.array([b"k"]), POSITION: pa.array([b"p"])}
    rows = pa.table({**columns, **own})
    key = (fields[0][1],)
    deletes = pa.table({key[0]: pa.array([1]), **own})
    return TableBatch("t", key, rows, deletes, {"type": "record", "name": "r", "fields": members}, **more)


def test_columns_are_called_as_the_table_calls_them():
    old = batch((1, "id"), (2, "a"), unchanged={"a": [True]})
    found = of_today(old, {1: "key", 2: "b c"}, {1, 2})
    assert found.upserts.column_names == ["key", "b_u0020c", KEY, POSITION]
    assert (found.key, found.deletes.column_names, list(found.unchanged)) == (
        ("key",),
        ["key", KEY, POSITION],
        ["b_u0020c"],
    )
    assert [member["name"] for member in found.schema["fields"]] == ["key", "b_u0020c"]


def test_what_has_its_name_still_is_left_alone():
    same = batch((1, "id"), (2, "a"))
    assert of_today(same, {1: "id", 2: "a"}, {1, 2}) is same
    assert of_today(same, {}, ()) is same


def test_a_dropped_column_does_not_write_into_its_successor():
    found = of_today(batch((1, "id"), (2, "a")), {1: "id", 2: "a", 5: "a"}, {1, 5})
    assert found.upserts.column_names == ["id", KEY, POSITION]
    assert of_today(batch((1, "id"), (2, "a")), {1: "id", 2: "a"}, {1}).upserts.column_names[:2] == ["id", "a"]


def test_two_columns_that_would_be_one_are_refused():
    with pytest.raises(CdcError, match="two columns of the record are one"):
        of_today(batch((1, "id"), (2, "a"), (3, "b")), {1: "id", 2: "b", 3: "b"}, {1, 2, 3})


@pytest.mark.parametrize("warehouse", ["parquet", "delta"])
def test_a_warehouse_whose_readers_take_consistent_sets_says_that_no_letter_can_be_sent_again(warehouse):
    config = {"connector.class": "spark", "topics": "t", "warehouse": warehouse, "warehouse.path": "/w"}
    with pytest.raises(CdcError) as caught:
        SparkSink({**config, "consistency": "source"}).redrive(LedgerAccess("c"), DeadLetterFilter())
    assert caught.value.code == "spark.letters_elsewhere"


class TestHalves:
    """Letters are applied together, or in halves down to those that are refused."""

    def attempts(self, refused, kind="spark.target_value"):
        tried = []

        def attempt(letters):
            tried.append([each.offset for each in letters])
            if refused & {each.offset for each in letters}:
                raise CdcError(kind, "refused")
            return RedriveResult(letters=list(letters), rows=len(letters))

        return tried, attempt

    def test_one_that_is_refused_stays_alone(self):
        tried, attempt = self.attempts({2})
        done = applied([letter(number) for number in range(4)], attempt)
        assert tried == [[0, 1, 2, 3], [0, 1], [2, 3], [2], [3]]
        assert ([each.offset for each in done.letters], done.rows) == ([0, 1, 3], 3)
        assert [(each.offset, error.code) for each, error in done.failed] == [(2, "spark.target_value")]

    def test_nothing_is_taken_apart_where_the_target_is_away(self):
        tried, attempt = self.attempts({1}, "spark.target_unreachable")
        with pytest.raises(CdcError):
            applied([letter(0), letter(1)], attempt)
        assert tried == [[0, 1]]

    def test_no_letters_are_no_attempt(self):
        assert applied([], None) == RedriveResult()


def test_a_step_ends_behind_the_tombstone_of_its_last_delete():
    letters = [letter(number, str(number).encode()) for number in range(AT_ONCE + 1)]
    assert len(of_one_step(letters)) == AT_ONCE
    assert len(of_one_step(letters[:AT_ONCE])) == AT_ONCE
    letters[-1] = letter(AT_ONCE, str(AT_ONCE - 1).encode(), None)
    assert len(of_one_step(letters)) == AT_ONCE + 1
