"""The keys of the sink into a database, connection strings, names of tables, and what a batch of records does."""

from __future__ import annotations

import struct as packed

import pytest
from cdcworker.connectors import jdbc_url
from cdcworker.connectors.api.record_target import TargetRecord
from cdcworker.connectors.targets.jdbc import mysql_values, naming, postgres_values
from cdcworker.connectors.targets.jdbc.changes import ChangeReader, RowsStep, TruncateStep, without_older
from cdcworker.connectors.targets.jdbc.config import CONFIG_DEF, CONFLUENT, DEBEZIUM
from cdcworker.connectors.targets.jdbc.ledger import Partition, ends_of
from cdcworker.connectors.targets.jdbc.rules import WriteRules, rules_of
from cdcworker.connectors.targets.rows import row_of
from cdcworker.connectors.transforms.data import ConnectSchema, struct
from cdcworker.connectors.warehouses.source_types import target_column
from cdcworker.schemas.errors import CdcError

BASE = {"topics": "t", "connection.url": "jdbc:postgresql://db:5432/app", "connection.username": "u"}
LONG = ConnectSchema("int64")
TEXT = ConnectSchema("string", optional=True)
KEY = struct(("id", LONG))
ROW = ConnectSchema("struct", optional=True, fields=struct(("id", LONG), ("a", TEXT)).fields)
SOURCE = struct(("table", ConnectSchema("string")))
ENVELOPE = struct(("before", ROW), ("after", ROW), ("op", ConnectSchema("string")), ("source", SOURCE))


def wrong(**config):
    named = {name.replace("__", "."): value for name, value in config.items()}
    return {value.name for value in CONFIG_DEF.validate({**BASE, **named}) if value.errors}


def rules(cls="jdbc-sink", **config):
    named = {name.replace("__", "."): value for name, value in config.items()}
    return rules_of(CONFIG_DEF.parse({**BASE, **named}), cls)


def change(op, id, text="x", offset=0, position=None):
    row = {"id": id, "a": text}
    numbers = zip(("commit_lsn", "tx_index", "tx_sub"), position or (), strict=False)
    source = {"table": "orders", **dict(numbers)}
    value = {
        "before": row if op == "d" else None,
        "after": None if op in ("d", "t") else row,
        "op": op,
        "source": source,
    }
    key = None if op == "t" else {"id": id}
    return TargetRecord(f"id-0-{offset}", "p.public.orders", 0, offset, 0, KEY, key, ENVELOPE, value)


def steps(records, **more):
    return ChangeReader(WriteRules(**more)).steps(records)


@pytest.mark.parametrize(
    "text",
    [
        "jdbc:oracle://a/b", "postgresql://a/b", "jdbc:postgresql://a", "jdbc:postgresql://u:p@a/b", "jdbc:postgresql://a/b?user=x",
        "jdbc:postgresql://a/b?password=x", "jdbc:postgresql://a:0/b", "jdbc:postgresql://a:99999/b", "jdbc:postgresql://a/b?nope=1",
        "jdbc:postgresql://a/b?sslmode=maybe", "jdbc:mysql://a:1,b:2/d", "", "jdbc:postgresql://a/b%00c",
        "jdbc:postgresql://a/b?currentSchema=a%0Ab", "jdbc:mysql://(host=a,port=1)/b", "jdbc:postgresql://%2Ftmp/b",
    ],
)  # fmt: skip
def test_connection_strings_that_are_refused(text):
    assert wrong(connection__url=text) == {"connection.url"}
    problem = jdbc_url.problem(text)
    assert problem
    assert "u:p" not in problem


def test_what_connection_strings_say():
    found = jdbc_url.parsed(
        "jdbc:postgresql://a,[::1]:6000/d%20b?sslmode=verify-full&sslrootcert=system&currentSchema=s&ApplicationName=x"
    )
    assert (found.hosts, found.ports, found.database, found.schema) == (("a", "::1"), (5432, 6000), "d b", "s")
    assert (found.sslmode, found.sslrootcert) == ("verify-full", "system")
    mysql = jdbc_url.parsed("jdbc:mysql://a/d?sslMode=VERIFY_IDENTITY&serverTimezone=UTC&rewriteBatchedStatements=true")
    assert (mysql.kind, mysql.ports, mysql.sslmode, mysql.schema) == ("mysql", (3306,), "verify-full", "d")
    assert jdbc_url.parsed("jdbc:postgresql://a/d?currentSchema=").schema == "public"
    assert jdbc_url.parsed("jdbc:postgresql://a/d?ssl=true").sslmode == "verify-full"
    assert jdbc_url.parsed("jdbc:mariadb://a/d?useSSL=false").sslmode == "disable"


def test_keys_that_contradict_each_other_are_refused_by_name():
    assert wrong(primary__key__mode="record_header") == {"primary.key.mode"}
    assert wrong(delete__enabled="true", pk__mode="none") == {"delete.enabled"}
    assert wrong(insert__mode="upsert", primary__key__mode="none") == {"insert.mode"}
    assert wrong(primary__key__mode="record_value") == {"primary.key.fields"}
    assert wrong(dialect__name="MySqlDatabaseDialect") == {"dialect.name"}
    assert wrong(column__naming__strategy="com.example.Own") == {"column.naming.strategy"}
    assert wrong(use__time__zone="Europe/Berlin") == {"use.time.zone"}
    assert wrong(table__types="VIEW") == {"table.types"}
    assert wrong(collection__name__format="${nope}") == {"collection.name.format"}
    assert wrong(collection__name__format="a.b.c") == {"collection.name.format"}
    assert wrong(no__such__key="1") == {"no.such.key"}
    assert wrong(connection__pool__max_size="5", batch__size="100", quote__identifiers="false") == set()
    with pytest.raises(CdcError, match=r"delete\.enabled needs"):
        rules(DEBEZIUM[0], delete__enabled="true")


def test_a_class_of_another_product_stands_for_its_defaults():
    own, debezium, confluent = rules(), rules(DEBEZIUM[0]), rules(CONFLUENT[0], auto__create="true", pk__mode="kafka")
    assert (own.insert_mode, own.key_mode, own.deletes, own.creates, own.evolves, own.folds) == (
        "upsert",
        "record_key",
        True,
        True,
        True,
        False,
    )
    assert (debezium.insert_mode, debezium.key_mode, debezium.deletes, debezium.creates, debezium.folds) == (
        "insert",
        "none",
        False,
        False,
        True,
    )
    assert (confluent.creates, confluent.evolves, confluent.folds, confluent.dotted) == (True, False, False, True)
    assert len(confluent.key_fields) == 3


@pytest.mark.parametrize(
    ("template", "dotted", "wanted"),
    [
        ("${topic}", False, ("", "p_public_orders")), ("${topic}", True, ("public", "orders")), ("copy.${table}", False, ("copy", "orders")),
        ("${schema}.${table}", False, ("public", "orders")), ("x_${source.table}", False, ("", "x_orders")),
    ],
)  # fmt: skip
def test_names_of_tables(template, dotted, wanted):
    assert naming.TableNames(template, dotted=dotted).of(change("c", 1)) == wanted
    tombstone = TargetRecord("id-0-1", "p.public.orders", 0, 1, 0)
    assert (naming.TableNames(template, dotted=dotted).of(tombstone) is None) == ("source" in template)


def test_of_a_key_the_last_change_counts_and_a_row_that_is_gone_is_not_written():
    (step,) = steps([change("c", 1, "a"), change("c", 2, "a"), change("u", 1, "b"), change("d", 2)])
    assert isinstance(step, RowsStep)
    assert step.written == {frozenset(): [(1, "b")]}
    assert step.deleted == [(2,)]
    (again,) = steps([change("c", 1, "a"), change("d", 1), change("c", 1, "b")])
    assert (again.written, again.deleted) == ({frozenset(): [(1, "b")]}, [])


def test_a_truncate_stands_between_what_came_before_and_after_it():
    found = steps([change("c", 1), change("t", 0, position=(5, 1, 0)), change("c", 2)], truncates=True, position="at")
    assert [type(step) for step in found] == [RowsStep, TruncateStep, RowsStep]
    assert found[1].position == packed.pack(">QII", 5, 1, 0)
    (left_out,) = steps([change("c", 1), change("t", 0), change("c", 2)])
    assert len(left_out.written[frozenset()]) == 2


def test_rows_from_before_a_truncate_stay_out():
    (step,) = steps(
        [change("c", 1, position=(4, 1, 0)), change("c", 2, position=(6, 1, 0)), change("c", 3)], position="at"
    )
    kept = without_older(step, 2, packed.pack(">QII", 5, 1, 0))
    assert [row[0] for row in kept.written[frozenset()]] == [2, 3]


def test_a_value_that_was_not_sent_is_taken_from_the_change_before_it():
    missing = "__debezium_unavailable_value"
    (step,) = steps([change("u", 1, "long"), change("u", 1, missing), change("u", 2, missing)])
    assert step.written == {frozenset(): [(1, "long")], frozenset({1}): [(2, missing)]}


def test_a_row_behind_a_deletion_has_no_value_of_the_deleted_one():
    (step,) = steps([change("d", 1), change("c", 1, "__debezium_unavailable_value")])
    assert step.written == {frozenset(): [(1, None)]}


def test_a_row_with_the_columns_of_an_envelope_is_a_row():
    schema = struct(("id", LONG), ("before", TEXT), ("after", TEXT), ("op", TEXT))
    row = {"id": 1, "before": "b", "after": "a", "op": "d"}
    (step,) = steps([TargetRecord("id-0-1", "p.public.orders", 0, 1, 0, KEY, {"id": 1}, schema, row)])
    assert step.written == {frozenset(): [(1, "b", "a", "d")]}
    assert row_of(TargetRecord("id-0-1", "t", 0, 1, 0, KEY, {"id": 1}, schema, row)).value == row


def test_a_record_without_a_schema_or_a_key_is_refused():
    for record in (
        TargetRecord("id-0-1", "t", 0, 1, 0, KEY, {"id": 1}, None, {"id": 1}),
        TargetRecord("id-0-1", "t", 0, 1, 0, None, None, ROW, {"id": 1, "a": "x"}),
    ):
        with pytest.raises(CdcError) as caught:
            steps([record])
        assert caught.value.code == "sink.record_refused"


def test_the_ledger_goes_by_the_id_of_the_topic():
    first = TargetRecord("a-b_c-3-17", "renamed", 3, 17, 0)
    assert ends_of([first]) == {Partition("a-b_c", 3): 18}


def test_arrays_of_texts_are_quoted_where_they_must_be():
    assert postgres_values.quoted([]) == "{}"
    assert postgres_values.quoted(["a", "b,c"]) == '{"a","b,c"}'
    assert postgres_values.quoted(['a"', "\\", None, "NULL", ""]) == '{"a\\"","\\\\",NULL,"NULL",""}'
    assert postgres_values.quoted(['","']) == '{"\\",\\""}'


def test_literals_of_mysql():
    def made(avro, kind, value):
        return mysql_values.literal_of(target_column("x", {"name": "x", "type": avro}), kind)(value)

    assert made("string", "longtext", "it's \\") == "'it''s \\\\'"
    assert made("bytes", "longblob", b"\0'") == "x'0027'"
    assert made("boolean", "tinyint(1)", True) == "1"
    assert made("double", "double", float("nan")) == "null"
    assert made("long", "bigint", None) == "null"
    decimal = {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}
    assert made(decimal, "decimal(5,2)", b"\x01\x00") == "2.56"
    zoned = {"type": "string", "connect.name": "io.debezium.time.ZonedTimestamp"}
    assert made(zoned, "datetime(6)", "2024-01-01T02:00:00+02:00") == "'2024-01-01 00:00:00'"


def test_numbers_that_come_as_texts_are_numbers_in_statements_of_mysql():
    column = target_column("x", {"name": "x", "type": "string", "cdc.type": "numeric(5,2)"})
    assert column.kind == "decimal_words"
    made = mysql_values.literal_of(column, "decimal(5,2)")
    assert [made(text) for text in ("1.50", "1e2", "1e999999999", "NaN")] == ["1.50", "100", "'1e999999999'", "null"]
    for text in ("(select 42) * 1", "1) or (1=1", "\u0663) or 1", "1; drop table t -- 1"):
        with pytest.raises(ArithmeticError):
            made(text)
    span = target_column("x", {"name": "x", "type": {"type": "long", "connect.name": "io.debezium.time.MicroDuration"}})
    with pytest.raises(ValueError, match="invalid literal"):
        mysql_values.literal_of(span, "bigint")("(select 42)")
