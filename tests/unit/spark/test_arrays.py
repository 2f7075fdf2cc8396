"""Array steps of the sink that save copies: they say what the plain way says."""

from __future__ import annotations

import datetime as dt
import itertools

import numpy as np
import pyarrow as pa
import pytest
from cdcworker.connectors.spark import arrays
from cdcworker.connectors.spark.arrowtypes import instants
from cdcworker.connectors.spark.buckets import SAMPLE_ROWS, repeating
from cdcworker.connectors.spark.config import CONFIG_DEF, PARQUET_RECORDS_MAX, RECORDS_MAX
from cdcworker.connectors.spark.connector import records_of


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


@pytest.mark.parametrize("part", ["1", "123", "123456"])
def test_times_of_one_length_are_read_as_any_others(part):
    moments = ["1969-12-31T23:59:59", "2024-02-29T12:34:56", "0001-01-01T00:00:00", "9999-12-31T23:59:59"]
    texts = pa.array([f"{moment}.{part}Z" for moment in moments])
    wanted = [dt.datetime.fromisoformat(f"{moment}.{part.ljust(6, '0')}+00:00") for moment in moments]
    found = instants(pa.concat_arrays([pa.array(["x"]), texts]).slice(1))
    assert found.view(pa.timestamp("us", "UTC")).to_pylist() == wanted


@pytest.mark.parametrize(
    "texts",
    [
        ["2024-01-01T00:00:00.1Z", "2024-01-01T00:00:00.12Z"],
        ["2024-01-01T00:00:00.1Z", None],
        ["+12024-01-01T00:00:00Z"],
        ["2024-01-01T00:00:00.x1Z"],
        ["2024-01-01 00:00:00.12Z"],
        ["infinity"],
        [],
    ],
)
def test_times_of_other_forms_are_left_to_the_plain_way(texts):
    assert instants(pa.array(texts, pa.string())) is None


def test_columns_with_few_values_get_a_dictionary():
    count = 4 * SAMPLE_ROWS
    few, many = pa.array(["a", "b"] * (count // 2)), pa.array(range(count))
    nested = pa.array([[1]] * count)
    assert repeating(pa.table({"few": few, "many": many, "nested": nested})) == ["few"]


def test_batches_of_files_are_larger_unless_somebody_says_how_large():
    config = {"connector.class": "spark", "topics": "t", "warehouse": "parquet", "warehouse.path": "/w"}
    assert records_of(config, CONFIG_DEF.parse(config)) == PARQUET_RECORDS_MAX
    given = {**config, "max.batch.records": "500"}
    assert records_of(given, CONFIG_DEF.parse(given)) == 500
    lake = {**config, "warehouse": "delta"}
    assert records_of(lake, CONFIG_DEF.parse(lake)) == RECORDS_MAX
    server = {"warehouse.hostname": "h", "warehouse.user": "u", "warehouse.dbname": "d"}
    database = {**config, "warehouse": "postgres", **server}
    assert records_of(database, CONFIG_DEF.parse(database)) == RECORDS_MAX
