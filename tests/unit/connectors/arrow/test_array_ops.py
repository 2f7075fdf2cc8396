"""Array steps of the sink that save copies: they say what the plain way says."""

from __future__ import annotations

import datetime as dt
import itertools

import numpy as np
import pyarrow as pa
import pytest
from cdcworker.connectors.arrow import array_ops as arrays
from cdcworker.connectors.sink_engine.config import RECORDS_MAX, records_max
from cdcworker.connectors.spark.config import CONFIG_DEF
from cdcworker.connectors.warehouses.arrow_types import instants
from cdcworker.connectors.warehouses.lake.kind import DELTA
from cdcworker.connectors.warehouses.parquet.buckets import SAMPLE_ROWS, repeating
from cdcworker.connectors.warehouses.parquet.kind import PARQUET
from hypothesis import given
from hypothesis import strategies as st


def batch(*rows):
    columns = {"topic": pa.array([row[0] for row in rows]), "n": pa.array([row[1] for row in rows])}
    return pa.table(columns)


def test_records_are_dealt_out_by_topic_in_their_order_however_they_are_cut():
    mixed = batch(("a", 1), ("b", 2), ("a", 3))
    lone = batch(("b", 4), ("b", 5))
    lone = lone.set_column(0, "topic", lone["topic"].combine_chunks().dictionary_encode())
    found = arrays.by_topic(mixed)
    assert {name: part["n"].to_pylist() for name, part in found.items()} == {"a": [1, 3], "b": [2]}
    assert {name: part["n"].to_pylist() for name, part in arrays.by_topic(lone).items()} == {"b": [4, 5]}
    assert arrays.by_topic(batch()) == {}


@pytest.mark.parametrize(
    ("values", "rows"),
    [
        ([b"a", None, b"", b"bcd", b"e"], [0, 3, 4]),
        ([b"a", b"skipped", b"bcd"], [0, 2]),
        ([None, b"a", None], [1]),
        ([b"a", b"bc"], [0, 1]),
    ],
)
def test_chosen_values_are_those_rows_whatever_lies_between_them(values, rows):
    column = pa.array([b"before", *values], pa.binary()).slice(1)
    data, offsets = arrays.chosen(column, np.array(rows))
    held = bytes(data)
    assert [held[start:end] for start, end in itertools.pairwise(offsets)] == [values[row] for row in rows]


MOMENTS = (
    *(
        "1969-12-31T23:59:59",
        "2024-02-29T12:34:56",
        "2000-02-29T00:00:00",
        "0001-01-01T00:00:00",
        "9999-12-31T23:59:59",
    ),
    *("1900-03-01T00:00:00", "2023-02-28T23:59:59"),
)


@pytest.mark.parametrize("part", ["", ".1", ".123", ".123456"])
def test_times_are_read_as_any_others(part):
    texts = pa.array([f"{moment}{part}Z" for moment in MOMENTS])
    wanted = [dt.datetime.fromisoformat(f"{moment}.{part[1:].ljust(6, '0')}+00:00") for moment in MOMENTS]
    found = instants(pa.concat_arrays([pa.array(["x"]), texts]).slice(1))
    assert found.view(pa.timestamp("us", "UTC")).to_pylist() == wanted


@given(st.lists(st.none() | st.datetimes(), min_size=1))
def test_times_and_nulls_among_them_are_read_back(moments):
    texts = pa.array([None if moment is None else f"{moment.isoformat()}Z" for moment in moments], pa.string())
    assert instants(texts).view(pa.timestamp("us")).to_pylist() == moments


@pytest.mark.parametrize(
    "text",
    [
        *("+12024-01-01T00:00:00Z", "2024-01-01T00:00:00.x1Z", "2024-01-01 00:00:00.12Z", "infinity", ""),
        *("2024-01-01T00:00:00.Z", "2024-01-01T00:00:00.1234567Z", "2024-01-01T00:00:00", "2024-01-01T00:00:00,1Z"),
        *("2023-02-29T00:00:00Z", "1900-02-29T00:00:00Z", "2024-04-31T00:00:00Z", "2024-13-01T00:00:00Z"),
        *("0000-01-01T00:00:00Z", "2024-01-01T24:00:00Z", "2024-01-01T00:60:00Z", "2024-01-01T00:00:60Z"),
    ],
)
def test_times_of_other_forms_are_left_to_the_plain_way(text):
    assert instants(pa.array(["2024-01-01T00:00:00.1Z", text], pa.string())) is None
    assert instants(pa.array([], pa.string())) is None


def test_columns_with_few_values_get_a_dictionary():
    count = 4 * SAMPLE_ROWS
    few, many = pa.array(["a", "b"] * (count // 2)), pa.array(range(count))
    nested = pa.array([[1]] * count)
    assert repeating(pa.table({"few": few, "many": many, "nested": nested})) == ["few"]


def test_batches_of_files_are_larger_unless_somebody_says_how_large():
    config = {"connector.class": "spark", "topics": "t", "warehouse": "parquet", "warehouse.path": "/w"}
    assert records_max(config, CONFIG_DEF.parse(config)) == PARQUET.records_max
    given = {**config, "max.batch.records": "500"}
    assert records_max(given, CONFIG_DEF.parse(given)) == 500
    lake = {**config, "warehouse": "delta"}
    assert records_max(lake, CONFIG_DEF.parse(lake)) == DELTA.records_max
    server = {"warehouse.hostname": "h", "warehouse.user": "u", "warehouse.dbname": "d"}
    database = {**config, "warehouse": "postgres", **server}
    assert records_max(database, CONFIG_DEF.parse(database)) == RECORDS_MAX
