"""What the sink into a database has to do besides what every sink of records has, whatever the database: dead letters and the ledger are one,
nobody keeps a lock for long, types fit, and configs of other products mean what they say.

The module of a database runs these tests over its fixture `receiver`: see `tests/integration/connectors/targets/jdbc_receivers.py`.
"""

from __future__ import annotations

import signal
from decimal import Decimal

import pytest
from cdcworker.connectors.api.record_target import RecordBatch, TargetPlace, TargetRecord
from cdcworker.connectors.api.sink import LedgerAccess
from cdcworker.connectors.targets.jdbc.altered_offsets import alter
from cdcworker.connectors.targets.jdbc.connector import JdbcSink
from cdcworker.connectors.transforms.data import ConnectSchema, struct
from cdcworker.schemas.errors import CdcError

from tests.change_streams import ID, column, table
from tests.contract.record_targets import QUICK, holds
from tests.record_sinks import TaskProcess, Topics, Workload, running, seed, wait

PLAIN = {"position.column": "", "truncate.enabled": "false"}
"""The default config, with which most records need not be read one by one."""
LONG = ConnectSchema("int64")
TEXT = ConnectSchema("string", optional=True)
KEY = struct(("id", LONG))
ROW = struct(("id", LONG), ("a", TEXT), name="row")


def envelope(row=ROW):
    optional = ConnectSchema("struct", optional=True, name=row.name, fields=row.fields)
    return struct(("before", optional), ("after", optional), ("op", ConnectSchema("string")), name="Envelope")


def opened(receiver, epoch=(1, 0), **config):
    named = {name.replace("__", "."): value for name, value in config.items()}
    whole = {"topics": "t", **receiver.config, **PLAIN, **named}
    parsed = JdbcSink.config_def.parse(whole)
    return JdbcSink(whole).open_target(
        TargetPlace(parsed, whole["connector.class"], connector=f"c-{receiver.database}", epoch=epoch)
    )


def record(offset, value, schema=ROW, key=None, op=None, id="topic"):
    """A flat row, or with `op` an envelope; None: a tombstone."""
    key = {"id": value["id"]} if key is None else key
    if op is not None:
        gone = op == "d"
        value = {"before": value if gone else None, "after": None if gone else value, "op": op}
        schema = envelope(schema)
    if value is None:
        schema = None
    return TargetRecord(f"{id}-0-{offset}", "t", 0, offset, 0, KEY, key, schema, value)


def write(target, *records):
    target.write(RecordBatch(records))


# Whole tasks


def test_four_poison_records_of_four_hundred_are_dead_letters_once_over_a_kill(kafka, receiver, tmp_path):
    topics = Topics(kafka)
    workload = Workload(topics, 1)
    poisoned = set(range(50, 400, 100))
    receiver.do(receiver.checked_table)
    for number in range(400):
        poison = number in poisoned
        topics.stream.insert(workload.table, (number, -1 if poison else number, "fine"))
        if not poison:
            workload.rows[number] = {"id": number, "n": number, "a": "fine"}
    topics.flush()
    letters = {"errors.tolerance": "all", "errors.deadletterqueue.topic.name": topics.letters}
    config = receiver.config | QUICK | PLAIN | letters | {"offset.commit.interval.ms": "3000"}
    tasks = []
    with running():
        try:
            for epoch in (1, 2):
                before = receiver.taken()
                tasks.append(TaskProcess(topics, config, (epoch, 0), tmp_path))
                if epoch < 2:
                    wait(lambda before=before: receiver.taken() > before + 100, "progress")
                    tasks[-1].signal(signal.SIGKILL)
                    tasks[-1].ended()
            holds(receiver, workload, tasks[-1])
            wait(lambda: tasks[-1].numbers.get("lag_records") == 0, "that nothing waits")
            tasks[-1].stop()
        finally:
            for task in tasks:
                task.kill()
    values = [message.value() for message in topics.read(topics.letters)]
    assert len(values) == len(set(values)) == 4, "each is there once, though the ledger was ahead of Kafka's offsets"


def test_connections_that_are_cut_write_nothing_twice(kafka, receiver, tmp_path):
    topics = Topics(kafka)
    workload = Workload(topics, seed())
    workload.run(400, truncates=False)
    config = (
        receiver.config
        | QUICK
        | PLAIN
        | {"primary.key.mode": "kafka", "insert.mode": "insert", "delete.enabled": "false"}
    )
    task = TaskProcess(topics, config, (1, 0), tmp_path)
    written = [r for r in topics.stream.records if r["value"] is not None]
    with running(task):
        for part in (1, 2, 3):
            wait(lambda part=part: receiver.taken() > part * 60, "progress")
            receiver.gate.cut()
        wait(lambda: task.numbers.get("lag_records") == 0, "that nothing waits")
        task.stop()
        # A second row of one place in Kafka would be refused; so would one that is missing be seen.
        deletes = sum(1 for message in topics.read(topics.topic) if message.value() is None)
        assert len(receiver.rows()) == len(written) - deletes


def test_rows_go_straight_into_tables_and_are_the_same_as_one_by_one(kafka, receiver, tmp_path):
    wide = table(
        ID, column("n", "int", "integer"), column("t", "boolean", "boolean"), column("f", "double", "double precision"),
        column("a", "string", "text"), column("b", "bytes", "bytea"),
    )  # fmt: skip
    rows = [
        (1, None, True, 0.5, 'a"\\\n,{}', b"\0\xff"), (2, -5, None, -1e300, "", b""), (3, 1 << 30, False, None, "ü€😀", None),
        (4, 0, False, 1.0, None, b"x"), (5, 0, False, 1.0, "null", b"NULL"),
    ]  # fmt: skip
    found = []
    for more in ({}, {"position.column": "cdc_position"}):
        topics = Topics(kafka)
        for row in rows:
            topics.stream.insert(wide, row)
        topics.stream.update(wide, (2, 7, True, 0.25, "changed", b"y"))
        topics.stream.delete(wide, (4,))
        topics.flush()
        name = f"wide{len(found)}"
        config = receiver.config | QUICK | PLAIN | more | {"collection.name.format": name}
        task = TaskProcess(topics, config, (1, 0), tmp_path)
        with running(task):
            wait(lambda task=task: task.numbers.get("lag_records") == 0 and task.numbers.get("changes"), "all records")
            task.stop()
        held = [{k: v for k, v in row.items() if k != "cdc_position"} for row in receiver.rows(name)]
        found.append(sorted(held, key=lambda row: row["id"]))
    assert found[0] == found[1]
    assert [row["id"] for row in found[0]] == [1, 2, 3, 5]
    assert found[0][0] == {"id": 1, "n": None, "t": True, "f": 0.5, "a": 'a"\\\n,{}', "b": b"\0\xff"}
    assert found[0][1]["a"] == "changed"


# The target alone


def test_rows_are_inserted_changed_and_deleted_in_both_forms(receiver):
    target = opened(receiver)
    write(target, record(0, {"id": 1, "a": "x"}), record(1, {"id": 2, "a": None}, op="c"))
    write(
        target,
        record(2, {"id": 1, "a": "y"}, op="u"),
        record(3, {"id": 2, "a": None}, op="d"),
        record(4, None, key={"id": 2}),
    )
    assert receiver.rows() == [{"id": 1, "a": "y"}]
    write(target, record(2, {"id": 1, "a": "old"}, op="u"))
    assert receiver.rows() == [{"id": 1, "a": "y"}], "what is in the ledger is left out"
    target.close()


def test_a_record_of_a_topic_that_was_created_again_is_new(receiver):
    target = opened(receiver)
    write(target, record(0, {"id": 1, "a": "x"}))
    write(target, record(0, {"id": 1, "a": "y"}, id="another"))
    assert receiver.rows() == [{"id": 1, "a": "y"}]
    target.close()


def test_a_former_owner_is_refused(receiver):
    old, new = opened(receiver), opened(receiver, (2, 0))
    write(old, record(0, {"id": 1, "a": "x"}))
    write(new, record(1, {"id": 1, "a": "y"}))
    with pytest.raises(CdcError) as caught:
        write(old, record(2, {"id": 1, "a": "z"}))
    assert caught.value.code == "sink.fenced"
    assert receiver.rows() == [{"id": 1, "a": "y"}]
    for target in (old, new):
        target.close()


def test_offsets_that_a_person_alters_are_written_again(receiver):
    target = opened(receiver)
    write(target, record(0, {"id": 1, "a": "x"}), record(1, {"id": 2, "a": "x"}))
    config = JdbcSink.config_def.parse({"topics": "t", **receiver.config})
    access = LedgerAccess(f"c-{receiver.database}", (1, 5))
    alter(config, access, {("t", 0): 1}, lambda _: "topic")
    with pytest.raises(CdcError) as caught:
        write(target, record(2, {"id": 3, "a": "x"}))
    assert caught.value.code == "sink.fenced"
    new = opened(receiver, (2, 0))
    write(new, record(0, {"id": 1, "a": "y"}), record(1, {"id": 2, "a": "y"}))
    assert sorted(row["a"] for row in receiver.rows()) == ["x", "y"], "from the offset that was set"
    alter(config, LedgerAccess(f"c-{receiver.database}", (2, 5)), None, lambda _: "topic")
    last = opened(receiver, (3, 0))
    write(last, record(0, {"id": 1, "a": "z"}))
    assert sorted(row["a"] for row in receiver.rows()) == ["y", "z"]
    for each in (target, new, last):
        each.close()


def test_columns_are_added_and_widened_and_what_no_column_holds_is_refused_by_its_name(receiver):
    target = opened(receiver)
    small = struct(("id", LONG), ("a", ConnectSchema("int32", optional=True)))
    large = struct(("id", LONG), ("a", ConnectSchema("int64", optional=True)), ("late", TEXT))
    write(target, record(0, {"id": 1, "a": 5}, small))
    write(target, record(1, {"id": 2, "a": 1 << 40, "late": "x"}, large))
    assert receiver.rows() == [{"id": 1, "a": 5, "late": None}, {"id": 2, "a": 1 << 40, "late": "x"}]
    other = struct(("id", LONG), ("a", ConnectSchema("boolean", optional=True)))
    with pytest.raises(CdcError) as caught:
        write(target, record(2, {"id": 3, "a": True}, other))
    assert caught.value.code in ("sink.table_unfit",)
    assert caught.value.where["column"] == "a"
    target.close()


def test_configs_of_other_products_have_their_defaults(receiver):
    debezium = "io.debezium.connector.jdbc.JdbcSinkConnector"
    target = opened(receiver, connector__class=debezium)
    with pytest.raises(CdcError) as caught:
        write(target, record(0, {"id": 1, "a": "x"}))
    assert caught.value.code == "sink.table_unfit"
    target.close()
    confluent = "io.confluent.connect.jdbc.JdbcSinkConnector"
    target = opened(
        receiver, connector__class=confluent, auto__create="true", insert__mode="upsert", pk__mode="record_key", pk__fields="id",
        delete__enabled="true",
    )  # fmt: skip
    write(target, record(0, {"id": 1, "a": "x"}), record(1, {"id": 2, "a": "x"}), record(2, None, key={"id": 1}))
    assert receiver.rows() == [{"id": 2, "a": "x"}]
    target.close()


def test_a_value_that_was_not_sent_stays(receiver):
    target = opened(receiver)
    write(target, record(0, {"id": 1, "a": "long"}))
    write(target, record(1, {"id": 1, "a": "__debezium_unavailable_value"}, op="u"))
    assert receiver.rows() == [{"id": 1, "a": "long"}]
    target.close()


def test_a_value_of_bytes_that_was_not_sent_stays_too(receiver):
    target = opened(receiver)
    schema = struct(("id", LONG), ("a", ConnectSchema("bytes", optional=True)))
    write(target, record(0, {"id": 1, "a": b"long"}, schema))
    write(target, record(1, {"id": 1, "a": b"__debezium_unavailable_value"}, schema, op="u"))
    assert receiver.rows() == [{"id": 1, "a": b"long"}]
    target.close()


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (ConnectSchema("int32"), "5,6"), (ConnectSchema("int32"), "5} , {"), (ConnectSchema("string"), {"a": 1}), (ConnectSchema("string"), "\ud800"),
        (ConnectSchema("int64", name="io.debezium.time.MicroDuration"), "(select 42)"), (ConnectSchema("bytes"), 5),
        (ConnectSchema("int32", name="io.debezium.time.Date"), "x"), (ConnectSchema("string", name="io.debezium.time.ZonedTimestamp"), 5),
    ],
)  # fmt: skip
def test_a_value_that_is_none_of_its_schema_is_refused_and_is_no_part_of_a_statement(receiver, schema, value):
    target = opened(receiver)
    row = struct(("v", schema), ("id", LONG))
    with pytest.raises(CdcError) as caught:
        write(target, record(0, {"v": value, "id": 1}, row))
    assert caught.value.code == "sink.record_refused"
    assert receiver.rows() == []
    target.close()


def test_names_of_any_letters_are_names(receiver):
    for number, name in enumerate(("a%sb", "100%", 'it\'s "so" `so`', "select", "\u00fc \u0416")):
        target = opened(receiver, collection__name__format=name)
        schema = struct(("id", LONG), (name, TEXT))
        for offset, op in enumerate("cud"):
            write(target, record(offset, {"id": 1, name: op}, schema, op=op, id=f"t{number}"))
        write(target, record(3, {"id": 2, name: "x"}, schema, op="c", id=f"t{number}"))
        quote = receiver.quoted(name)
        assert receiver.ask(f"select id, {quote} from {quote}") == [(2, "x")]
        target.close()


def test_a_value_that_another_row_has_to_itself_is_refused_and_changes_neither(receiver):
    receiver.do(f"create table {receiver.quoted('orders')} (id bigint primary key, a varchar(50) unique, n bigint)")
    target = opened(receiver)
    row = struct(("id", LONG), ("a", TEXT), ("n", ConnectSchema("int64", optional=True)))
    write(target, record(0, {"id": 1, "a": "x", "n": 1}, row), record(1, {"id": 2, "a": "y", "n": 1}, row))
    with pytest.raises(CdcError) as caught:
        write(target, record(2, {"id": 3, "a": "x", "n": 3}, row))
    assert caught.value.code == "sink.record_refused"
    write(target, record(3, {"id": 2, "a": "y", "n": 2}, row))
    found = sorted(receiver.rows(), key=lambda each: each["id"])
    assert found == [{"id": 1, "a": "x", "n": 1}, {"id": 2, "a": "y", "n": 2}]
    target.close()


def test_an_index_of_a_part_of_the_key_is_none_of_the_key(receiver):
    receiver.do(f"create table {receiver.quoted('orders')} (id bigint primary key, a varchar(50))")
    target = opened(receiver, primary__key__mode="record_value", primary__key__fields="id,a", delete__enabled="false")
    with pytest.raises(CdcError) as caught:
        write(target, record(0, {"id": 1, "a": "x"}))
    assert caught.value.code == "sink.table_unfit"
    target.close()


def test_tables_of_many_schemas_do_not_fill_memory(receiver):
    target = opened(receiver)
    for offset in range(5):
        write(target, record(offset, {"id": offset, "a": "x"}, struct(("id", LONG), ("a", TEXT))))
    known = target._database._tables
    known.update({("elsewhere", number): known[next(iter(known))] for number in range(1_100)})
    write(target, record(5, {"id": 5, "a": "x"}))
    assert len(known) == 1
    assert len(receiver.rows()) == 6
    target.close()


def test_types_have_their_values(receiver):
    target = opened(receiver)
    number = ConnectSchema("bytes", name="org.apache.kafka.connect.data.Decimal", parameters={"scale": "2", "connect.decimal.precision": "10"})  # fmt: skip
    schema = struct(
        ("id", LONG), ("number", number), ("day", ConnectSchema("int32", name="io.debezium.time.Date")),
        ("moment", ConnectSchema("string", name="io.debezium.time.ZonedTimestamp")),
        ("local", ConnectSchema("int64", name="io.debezium.time.MicroTimestamp")),
    )  # fmt: skip
    row = {
        "id": 1,
        "number": (-12345).to_bytes(2, "big", signed=True),
        "day": 1,
        "moment": "2024-02-29T12:00:00.5Z",
        "local": 86_400_000_001,
    }
    write(target, record(0, row, schema))
    (found,) = receiver.rows()
    assert found["number"] == Decimal("-123.45")
    assert str(found["day"]) == "1970-01-02"
    assert str(found["moment"]).startswith("2024-02-29 12:00:00.5")
    assert str(found["local"]) == "1970-01-02 00:00:00.000001"
    target.close()


def test_the_check_says_what_is_wrong_and_makes_nothing(receiver):
    target = opened(receiver)
    assert target.check() == []
    assert receiver.taken() == 0
    closed = opened(receiver, connection__password="wrong-password", connection__username="nobody")
    (finding,) = closed.check()
    assert (finding.key, finding.severity) == ("connection.url", "error")
    assert "wrong-password" not in finding.message
    receiver.stop()
    (finding,) = target.check()
    assert (finding.code, finding.severity) == ("sink.target_unavailable", "warning")
