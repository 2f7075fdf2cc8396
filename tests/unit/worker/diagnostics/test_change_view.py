"""Changes that people read: what differs, filters, where reading begins, and what waits for a slow reader."""

from __future__ import annotations

import io
import json
import re
import threading
from types import SimpleNamespace

import pytest
from cdcworker.coordinator.model import Connector
from cdcworker.schemas.change import Change, Column, Position, Table
from cdcworker.schemas.encode import Encoder
from cdcworker.schemas.log import SchemaLog, register_in_memory
from cdcworker.worker.diagnostics.change_view import ChangeFilter, ChangeReader
from cdcworker.worker.diagnostics.tail import check_filter, parse_begin, topics_of
from cdcworker.worker.diagnostics.tail_child import LineOutlet

SOURCE = {
    "type": "record",
    "name": "Source",
    "namespace": "n",
    "fields": [{"name": name, "type": "string"} for name in ("schema", "table")]
    + [{"name": name, "type": "long"} for name in ("ts_ms", "lsn", "commit_lsn")],
}
ORDERS = Table(
    ("public", "orders"), 1, (Column("id", "long", optional=False), Column("state", "string"), Column("note", "string")), (0,), SOURCE
)  # fmt: skip


class Message:
    def __init__(self, record, offset=3):
        self._record, self._offset = record, offset

    def topic(self):
        return self._record.topic

    def partition(self):
        return 0

    def offset(self):
        return self._offset

    def key(self):
        return self._record.key

    def value(self):
        return self._record.value

    def headers(self):
        return self._record.headers

    def timestamp(self):
        return 1, 1_000


def changes(op, before=None, after=None, table=ORDERS, **more):
    log = SchemaLog()
    source = {"schema": "public", "table": "orders", "ts_ms": 5, "lsn": 70, "commit_lsn": 71}
    records = Encoder("shop", register_in_memory(log)).encode(
        [Change(op, table, Position(71, 0, 0), source, before, after, **more)]
    )
    reader = ChangeReader(lambda id: log.by_id(id))
    return [reader.change(Message(record)) for record in records]


def raw(value, key=None, topic="shop.public.orders"):
    return Message(SimpleNamespace(topic=topic, key=key, value=value, headers=None))


def test_an_update_says_which_columns_differ():
    (found,) = changes("u", (7, "new", "a"), (7, "paid", "a"))
    assert (found["table"], found["op"], found["key"], found["changed"]) == (
        "public.orders",
        "update",
        {"id": 7},
        ["state"],
    )
    assert found["before"] == {"id": 7, "state": "new", "note": "a"}
    assert found["source"] == {"ts_ms": 5, "lsn": 70, "commit_lsn": 71, "schema": "public", "table": "orders"}
    assert (found["topic"], found["partition"], found["offset"], found["written_ms"]) == (
        "shop.public.orders",
        0,
        3,
        1000,
    )


DECIMAL = {
    "type": "bytes", "precision": 4, "scale": 2, "connect.name": "org.apache.kafka.connect.data.Decimal", "logicalType": "decimal",
}  # fmt: skip
PRICES = Table(
    ("public", "orders"), 1, (Column("n", DECIMAL, optional=False, bound=lambda value: b"\x27\x0f"),), (0,), SOURCE
)  # fmt: skip


@pytest.mark.parametrize("written", [b"", b"\x27\x10"], ids=["earlier", "now"])
def test_a_key_is_shown_and_found_as_it_is_where_the_row_has_the_nearest_value(written):
    (found,) = changes("c", after=(written,), table=PRICES)
    assert (found["key"], found["after"]) == ({"n": "NaN"}, {"n": "99.99"})
    assert ChangeFilter(key=("n=NaN",)).takes(found)
    assert not ChangeFilter(key=("n=99.99",)).takes(found)


def test_without_the_row_before_it_is_not_said_what_differs():
    (found,) = changes("u", None, (7, "paid", None))
    assert (found["before"], found["changed"]) == (None, None)


def test_a_value_that_the_database_did_not_send_does_not_count_as_changed():
    (found,) = changes("u", (7, "new", "long"), (7, "paid", None), unchanged=(2,))
    assert (found["changed"], found["unknown"]) == (["state"], ["note"])


def test_a_deletion_and_its_tombstone():
    deleted, tombstone = changes("d", (7, "new", None))
    assert (deleted["op"], deleted["before"]["state"], deleted["after"]) == ("delete", "new", None)
    assert (tombstone["op"], tombstone["key"], tombstone["table"]) == ("tombstone", {"id": 7}, "public.orders")


def test_records_without_an_envelope_and_of_json_are_shown_as_far_as_they_tell():
    reader = ChangeReader(lambda id: None)
    flat = reader.change(raw(json.dumps({"id": 1, "__op": "u"}).encode(), b'{"id":1}'))
    assert (flat["op"], flat["key"], flat["after"]) == ("update", {"id": 1}, {"id": 1, "__op": "u"})
    gone = reader.change(raw(json.dumps({"schema": {}, "payload": {"id": 1, "__deleted": "true"}}).encode()))
    assert (gone["op"], gone["table"]) == ("delete", "public.orders")
    line = reader.change(raw("line ä".encode(), topic="lines"))
    assert (line["op"], line["table"], line["after"]) == ("upsert", "lines", {"value": "line ä"})


def test_every_filter_has_to_hold():
    (update,) = changes("u", (7, "new", None), (7, "paid", None))
    taken = [
        ChangeFilter(),
        ChangeFilter(tables=("orders",), ops=("update", "delete"), key=("7",), where=("state=new", "state=paid")),
        ChangeFilter(tables=(r"public\..*",), key=("id=7",), where=("note=NULL",)),
    ]
    refused = [
        ChangeFilter(tables=("order",)), ChangeFilter(ops=("create",)), ChangeFilter(key=("8",)), ChangeFilter(key=("id=8",)),
        ChangeFilter(where=("state=new", "state=lost")), ChangeFilter(where=("nope=1",)),
    ]  # fmt: skip
    assert [each.takes(update) for each in taken] == [True] * len(taken)
    assert [each.takes(update) for each in refused] == [False] * len(refused)


def test_a_tombstone_is_shown_to_who_asks_for_it():
    _, tombstone = changes("d", (7, "new", None))
    assert (ChangeFilter().takes(tombstone), ChangeFilter(ops=("tombstone",)).takes(tombstone)) == (False, True)


def test_filters_that_cannot_be_meant_are_refused():
    for wrong in (ChangeFilter(tables=("(",)), ChangeFilter(ops=("insert",)), ChangeFilter(where=("state",))):
        with pytest.raises(ValueError, match=r"."):
            check_filter(wrong)


def test_where_reading_begins():
    assert parse_begin("now", 0) == ("now", 0)
    assert parse_begin("120", 0) == ("offset", 120)
    assert parse_begin("15m", 1_000) == ("time", 100_000)
    assert parse_begin("1970-01-01T00:00:10Z", 0) == ("time", 10_000)
    for wrong in ("yesterday", "1970-01-01T00:00:10", "-5", "9" * 19):
        with pytest.raises(ValueError, match=r"."):
            parse_begin(wrong, 0)


def test_a_source_has_the_topics_of_its_prefix_but_not_those_beside_the_rows():
    view = SimpleNamespace(topics={"c": frozenset({"p.watermark", "routed"})})
    found = topics_of(view, Connector("c", "i", 1, {"topic.prefix": "p.q"}, "RUNNING", "source"))
    names = ("p.q.public.t", "p.q.watermark", "p.q.transaction", "p.q.message", "p.qx.public.t", "pxq.public.t")
    assert [name for name in names if re.fullmatch(found.pattern, name)] == ["p.q.public.t", "p.q.message"]
    assert "routed" in found.names
    sink = Connector("c", "i", 1, {"topics": "a, b", "topics.regex": "x"}, "RUNNING", "sink")
    assert (topics_of(view, sink).names, topics_of(view, sink).pattern) == (("a", "b"), "")


class Reader:
    """Takes nothing before it is let."""

    def __init__(self):
        self.lines, self.gate, self.blocked = [], threading.Event(), threading.Event()

    def write(self, text):
        self.blocked.set()
        assert self.gate.wait(30)
        self.lines += [json.loads(line) for line in text.splitlines()]

    def flush(self):
        pass

    def kinds(self, kind):
        return [line[kind] for line in self.lines if kind in line]


def test_what_a_slow_reader_misses_is_the_oldest_and_is_counted():
    reader = Reader()
    outlet = LineOutlet(reader, may_drop=True, waiting_max=3)
    outlet.start()
    outlet.put({"n": 0})
    assert reader.blocked.wait(30)
    for number in range(1, 11):
        outlet.put({"n": number})
    outlet.close({"end": outlet.counts()})
    reader.gate.set()
    outlet.join(30)
    assert [change["n"] for change in reader.kinds("change")] == [0, 8, 9, 10]
    assert reader.kinds("end") == [{"read": 0, "matched": 11, "dropped": 7, "unreadable": 0}]
    order = [next(iter(line)) for line in reader.lines]
    assert order.index("counts") < order.index("change", 1), "it is told where it happened"


def test_who_reads_the_past_is_waited_for():
    reader = Reader()
    outlet = LineOutlet(reader, may_drop=False, waiting_max=3)
    outlet.start()
    producing = threading.Thread(target=lambda: [outlet.put({"n": n}) for n in range(50)])
    producing.start()
    assert reader.blocked.wait(30)
    reader.gate.set()
    producing.join(30)
    outlet.close({"end": outlet.counts()})
    outlet.join(30)
    assert [change["n"] for change in reader.kinds("change")] == list(range(50))
    assert reader.kinds("end")[0]["dropped"] == 0


def test_a_row_that_no_line_holds_is_told_without_its_columns():
    out = io.StringIO()
    outlet = LineOutlet(out, may_drop=True)
    outlet.start()
    outlet.put({"op": "create", "table": "t", "after": {str(n): "x" * 9_000 for n in range(200)}})
    outlet.close({"end": {}})
    outlet.join(30)
    (change,) = [json.loads(line)["change"] for line in out.getvalue().splitlines() if "change" in line]
    assert (change["table"], change["after"], change["too_large"] > 1 << 20) == ("t", None, True)


def test_a_table_of_a_database_without_schemas_is_named_with_its_database():
    source = {
        "db": "shop",
        "table": "orders",
        "gtid": "0-1-7",
        "file": "log.000001",
        "pos": 4,
        "query": "a row's value",
    }
    value = json.dumps({"op": "c", "before": None, "after": {"id": 1}, "source": source}).encode()
    found = ChangeReader(lambda _: None).change(raw(value, b'{"id": 1}', "p.shop.orders"))
    assert found["table"] == "shop.orders"
    assert found["source"] == {"db": "shop", "table": "orders", "gtid": "0-1-7", "file": "log.000001", "pos": 4}
