"""Poisoned records of every own topic, and what each of them is given to: the decoders and folds of a worker."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
from cdcworker.coordinator.api import LogRecord, Term
from cdcworker.coordinator.core.events import TaskReport
from cdcworker.coordinator.kafka import leadership
from cdcworker.coordinator.kafka.compacted_log import encode, record_of, to_json
from cdcworker.coordinator.log import leader_claim
from cdcworker.coordinator.log.config_fold import assignment_record, connector_record, fold_all, task_set_record
from cdcworker.coordinator.log.offset_records import offset_key
from cdcworker.coordinator.log.status_fold import (
    LeaseReader,
    StatusState,
    fold_status,
    presence_record,
    task_status_record,
)
from cdcworker.coordinator.model import (
    AssignedTask,
    Assignment,
    ClusterState,
    Connector,
    Presence,
    Reply,
    TaskSet,
    TaskStatus,
    View,
)
from cdcworker.schemas import avro
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.log import Registration, RegistrationMeta, SchemaLog, StoredSchema, encode_record, plan_all
from cdcworker.worker.diagnostics.change_view import ChangeFilter, ChangeReader
from cdcworker.worker.diagnostics.verify import Verifier, VerifyRun
from cdcworker.worker.processes.child import TaskChild
from cdcworker.worker.protocol import messages
from cdcworker.worker.protocol.heartbeat import HangDetector
from cdcworker.worker.protocol.task_limits import TaskLimits
from cdcworker.worker.rest import connect_json
from cdcworker.worker.rest.rebalance_counts import RebalanceCounts
from cdcworker.worker.rest.resources import loggers
from cdcworker.worker.rest.resources.monitoring.metrics import families, text, values
from cdcworker.worker.rest.resources.sets import changes
from cdcworker.worker.rest.resources.targets.verify import VerifySchedule
from cdcworker.worker.security.session_key import renew
from cdcworker.worker.source.start_reader import last_of, position_of
from cdcworker.worker.source.task_identity import same_key
from cdcworker.worker.validation.validate import read_findings

DEEP = b"[" * 100_000
BOUNDED = b'{"a":' + b"[" * 500 + b"]" * 500 + b"}"
LONG = b'{"n":' + b"9" * 5_000 + b"}"
HUGE = b'{"size":1e400}'
VALUES: Mapping[str, bytes] = {
    "deep": DEEP,
    "deep in an object": b'{"a":' + DEEP,
    "deep and whole": BOUNDED,
    "deep in objects": b'{"a":' * 5_000 + b"1" + b"}" * 5_000,
    "a string without an end": b'{"a":"' + b'\\"' * 50_000,
    "infinite": HUGE,
    "NaN": b'{"a":NaN}',
    "minus infinity": b'{"a":-Infinity}',
    "a long number": LONG,
    "a member twice": b'{"a":1,"a":2}',
    "no UTF-8": b"\xff\xfe{",
    "UTF-16": '{"a":1}'.encode("utf-16"),
    "empty": b"",
    "a list": b"[]",
    "a number": b"5",
    "null": b"null",
    "a text": b'"x"',
    "no JSON": b"{",
    "zero bytes": b"\0" * 64,
}
"""Values that no decoder takes, whatever their key is."""


class Poison(NamedTuple):
    """One record of an own topic."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = (("e", b"5"),)

    @property
    def name(self) -> str:
        return f"{self.topic}:{(self.key or b'')[:30]!r}:{(self.value or b'')[:60]!r}"


class FakeMessage:
    """A message of Kafka's client."""

    def __init__(self, poison: Poison, offset: int) -> None:
        self._poison, self._offset = poison, offset

    def topic(self) -> str:
        return f"group.{self._poison.topic}"

    def key(self) -> bytes | None:
        return self._poison.key

    def value(self) -> bytes | None:
        return self._poison.value

    def headers(self) -> list[tuple[str, bytes | None]]:
        return list(self._poison.headers)

    def error(self) -> None:
        return None

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._offset

    def timestamp(self) -> tuple[int, int]:
        return (1, 1_700_000_000_000)


OFFSETS = itertools.count(1_000)


def message(poison: Poison) -> Any:
    return FakeMessage(poison, next(OFFSETS))


# --- the corpus -----------------------------------------------------------------------------------------------------


def _config(key: str, value: Any) -> Poison:
    return Poison("configs", key.encode(), json.dumps(value).encode())


def _status(key: str, value: Any) -> Poison:
    return Poison("status", key.encode(), json.dumps(value).encode(), ())


def _schema(key: str, value: Any) -> Poison:
    return Poison("schemas", key.encode(), json.dumps(value).encode(), ())


def _offset(key: str, value: Any) -> Poison:
    return Poison("offsets", key.encode(), json.dumps(value).encode(), ())


CONNECTOR = {"incarnation": "i", "version": 1, "config": {"a": "b"}, "target_state": "RUNNING", "kind": "source"}
STATUS = {"state": "RUNNING", "worker_id": "w", "task_epoch": 1}
BAD_TYPES = '{"type":"fixed","name":"f","size":1e400}'
KEY = offset_key("good", {"server": "s", "task": 0})
TEXT = avro.canonical({"type": "record", "name": "r", "fields": [{"name": "a", "type": "long"}]})
BAD_TEXTS = (BAD_TYPES, "[" * 5_000, '{"type":"record","name":"x","fields":5}', '{"type":"fixed","name":"f","size":[]}',
             '{"type":"enum","name":5,"symbols":[]}', '{"type":"record","name":"x","namespace":[5],"fields":[]}',
             '{"type":"record","name":"x","fields":[],"aliases":[5]}', "NaN", '{"type":{"type":{"type":5}}}')  # fmt: skip


def _stored(text: str) -> Poison:
    fp = avro.fingerprint_of_text(text)
    return _schema(f"schema/{fp}", {"id": 77, "fp": fp, "type": "AVRO", "schema": text})


CORPUS: tuple[Poison, ...] = (
    *(Poison("configs", key, value) for key in (b"connector/c", b"leader") for value in VALUES.values()),
    *(Poison("status", b"task/good/0", value, ()) for value in VALUES.values()),
    *(Poison("offsets", KEY.encode(), value, ()) for value in VALUES.values()),
    *(Poison("schemas", b"use/s-value/9", value, ()) for value in VALUES.values()),
    *(Poison(topic, key, b"{}") for topic in ("configs", "status", "offsets", "schemas")
      for key in (None, b"\xff", b"", b"/", DEEP, b"connector/", b"task/x/" + b"9" * 5_000, "task/x/٣".encode())),
    *(Poison("configs", b"setting/x", b"{}", headers) for headers in (
        (("e", b"\xff"),), (("e", None),), (("e", b"9" * 5_000),), (("e", b"999999999999999999"),), (("e", "٣".encode()),))),
    *(_config("connector/c", {**CONNECTOR, **part}) for part in (
        {"version": "1"}, {"version": 1 << 70}, {"version": True}, {"config": []}, {"config": 5}, {"target_state": "GONE"},
        {"kind": "other"}, {"labels": {"a": {}}}, {"labels": [1]}, {"created": 1 << 60}, {"incarnation": []})),
    *(_config("connection/pg", {"incarnation": "i", "version": 1, "config": {}, **part}) for part in (
        {"version": "1"}, {"version": 1 << 70}, {"config": []}, {"config": 5}, {"created": 1 << 60}, {"incarnation": []})),
    *(_config("tasks/good", {"incarnation": "i", "config_version": 1, **part}) for part in (
        {"tasks": "abc"}, {"tasks": [5]}, {"task_epoch": -1}, {"config_version": []}, {"connection": 5})),
    *(_config("fenced/good", part) for part in ({"count": 1 << 50}, {"pending": [-1]}, {"pending": 5})),
    *(_config("assignment/w", {"boot_id": "b", "tasks": part}) for part in ("abcd", [["a"]], [[1, 2, 3, 4]], [[[], {}, 0, 0]])),
    _config("journal/0", {"seq": 1, "moves": [{"connector": 1, "task": 0}]}),
    _config("journal/0", {"seq": 1, "ts": 1 << 62}),
    _config("deadline/worker/w", {"boot_id": "b", "delay_ms": 1 << 62}),
    _config("job/good/1", {"incarnation": "i", "kind": "snapshot", "created": 1 << 62}),
    _config("verify/sink", {"incarnation": "i", "result": 5}),
    _config("verify/sink", {"incarnation": "i", "result": {"verdict": []}}),
    *(_config("verify/sink", {"incarnation": "i", "state": "done", **part}) for part in (
        {"ended": "x"}, {"ended": [1]}, {"ended": 1 << 62}, {"ended": -1}, {"started": "x"}, {"started": True}, {"state": []},
        {"id": 5}, {"source": []}, {"error": 5}, {"progress": "x"}, {"result": []}, {"incarnation": []})),
    *(_config("logger/root", {"level": "INFO", **part}) for part in (
        {"ts": "x"}, {"ts": []}, {"ts": {}}, {"ts": 1 << 62}, {"ts": -1}, {"ts": None}, {"level": ["a"]}, {"level": 5})),
    *(_config(key, {"level": "INFO", "ts": "x"}) for key in ("logger/", "logger/a/b", "logger/\x00", "logger/" + "a." * 200)),
    _config("setting/cluster", {"kafka": {}}),
    _config("setting/cluster", {"kafka": "k", "group": "g", "topics": 5, "backend": "b"}),
    *(_config("claim/5", part) for part in ({"ensemble": []}, {"epoch": "x"})),
    _config("session-key", {"keys": [{"id": [], "key": "%%", "created_ms": {}}]}),
    *(_status("worker/x", {"boot_id": "b", **part}) for part in (
        {"capacity": 0}, {"capacity": -1}, {"capacity": 1 << 60}, {"labels": {"a": 1}}, {"plugins": []}, {"protocol": "x"})),
    *(_status("task/good/0", {**STATUS, **part}) for part in (
        {"state": []}, {"state": "X"}, {"task_epoch": 1 << 62}, {"restarts": "ab"}, {"metrics": 5},
        {"metrics": {"retrying": {"count": "x", "since_ms": []}}}, {"metrics": {"latency": {"counts": 5, "sum_s": 1}}},
        {"metrics": {"latency": {"counts": ["x"] * 64, "sum_s": 1}}}, {"metrics": {"jobs": [{"id": 1, "tables": 5}]}},
        {"metrics": {"tables_held": []}}, {"metrics": {"cpu_cores": 1 << 100}}, {"seq": -1}, {"error": 5})),
    _status("lease/w", {"boot_id": "b", "n": "x"}),
    _status("topics/good/0", {"topics": "abc"}),
    *(_offset(KEY, {"v": 1, "position": {}, **part}) for part in (
        {"v": 2}, {"position": []}, {"task_epoch": "x"}, {"task_epoch": []}, {"incarnation": {}})),
    *(_offset(key, {"v": 1, "position": {}}) for key in ("[", '["good",{"task":{}}]', '["good",{"task":1e400}]', "[1,2,3]", '"x"')),
    *(_schema(f"use/s-value/{number}", {"sha": "x"}) for number in (0, -1, "x", "9" * 5_000, 2147483647, "٣")),
    *(_schema("use/s-value/9", {"sha": "x", **part}) for part in (
        {"sha": []}, {"table": []}, {"table": 5}, {"table": {"id": []}}, {"table": {"path": 5}}, {"table": {"path": [[]]}},
        {"effective": 5}, {"effective": {"commit_lsn": []}}, {"effective": {"commit_lsn": 1 << 80, "tx_index": 0}},
        {"ddl": {}}, {"change": 5})),
    *(_schema("schema/x", part) for part in ({"id": 1, "schema": "x"}, {"id": True, "schema": TEXT}, {"id": [], "schema": TEXT})),
    *map(_stored, BAD_TEXTS),
    *(_schema("config/", {"compatibility": level}) for level in (5, "SOME", [], None)),
)  # fmt: skip


# --- what they are given to -----------------------------------------------------------------------------------------

GOOD = Connector("good", "i", 1, {"connector.class": "datagen"}, "RUNNING", "source")
SHOP = Connector("shop", "i", 1, {"connector.class": "datagen", "topic.prefix": "shop"}, "RUNNING", "source")
SINKS = tuple(
    Connector(
        name,
        "i",
        1,
        {"connector.class": "spark", "topics": "shop.a", "verify.interval.ms": "60000"},
        "RUNNING",
        "sink",
    )
    for name in ("sink", "sink-after-it")
)
GOOD_TASKS = TaskSet("i", 1, ({"a": "b"},), task_epoch=1)
GOOD_ASSIGNMENT = Assignment("b", (AssignedTask("good", "i", 0, 1),))
READER = LeaseReader("w", "b", 1.0, 1.0)


def _log_record(record: LogRecord, topic: str, headers: Any = (("e", b"5"),)) -> LogRecord:
    key, value, _ = encode(record)
    made = record_of(message(Poison(topic, key, value, headers)), "g.configs")
    assert made is not None
    return made


def read_configs(*poisons: Poison) -> ClusterState:
    """Folds them behind a good connector and shows the result as REST does."""
    records = (
        *map(connector_record, (GOOD, SHOP, *SINKS)),
        task_set_record("good", GOOD_TASKS),
        assignment_record("w", GOOD_ASSIGNMENT),
    )
    good = [_log_record(record, "configs") for record in records]
    found = [record for record in (record_of(message(poison), "g.configs") for poison in poisons) if record is not None]
    state = fold_all(ClusterState(), [*good, *found])
    shown(view_of(state))
    return state


def view_of(cluster: ClusterState, status: StatusState | None = None) -> View:
    status = status or StatusState()
    return View("w", "b", "http://w", "k", True, True, cluster, status.presence, status.tasks, {})


def read_status(*poisons: Poison) -> StatusState:
    """Folds them behind a good presence and status."""
    presence = presence_record(Presence("w", "b", "http://w", "1", "h"))
    status = task_status_record(TaskStatus("good", 0, "RUNNING", "w", 1))
    good = [_log_record(record, "status", ()) for record in (presence, status)]
    found = [record for record in (record_of(message(poison), "g.configs") for poison in poisons) if record is not None]
    state = fold_status(StatusState(), [*good, *found], READER)
    shown(view_of(read_configs(), state))
    return state


def read_offsets(poison: Poison) -> Any:
    """Returns the position of the good connector's task, None without one; a refused one is a CdcError."""
    if poison.key is not None:
        same_key(poison.key.decode(errors="replace"), KEY)
    found = last_of(iter((message(poison),)), KEY)
    try:
        return None if found is None else position_of(found)
    except CdcError as error:
        return error


def read_schemas(*poisons: Poison) -> SchemaLog:
    """Folds them behind a good schema and reads everything that the registry answers."""
    log = SchemaLog()
    schema = {"type": "record", "name": "r", "fields": [{"name": "a", "type": "long"}]}
    registration = Registration("s-value", schema, RegistrationMeta())
    for record in plan_all(log, [registration])[1]:
        log.read(*encode_record(record))
    for poison in poisons:
        log.read(poison.key, poison.value, offset=next(OFFSETS))
    for subject in log.subjects():
        for version in log.versions(subject):
            _asked(log.by_fingerprint, version.fingerprint)
        log.in_force(subject, 1)
        log.owned(subject)
    for stored in log.schemas():
        _asked(log.by_id, stored.id)
    plan_all(log, [registration])
    return log


def _asked(ask: Callable[[Any], object], what: object) -> None:
    with contextlib.suppress(CdcError):
        ask(what)


def shown(view: View) -> None:
    """Answers as REST and `/metrics` do."""
    for connector in view.state.connectors.values():
        connect_json.connector_state(view, connector)
    connect_json.cluster(view)
    all_values = values(view, RebalanceCounts(), lambda _: True)
    text(list(families(all_values)), "", process=False)
    followed(view)


class _Cluster:
    """The cluster as the followers of settings see it; every command of theirs is done."""

    def __init__(self, view: View) -> None:
        self.view = lambda: view
        self.clock = lambda: 1_700_000_000.0

    async def ask(self, _: object) -> Reply:
        return Reply("ok")


async def _looked(view: View) -> list[str]:
    begun: list[str] = []

    class Comparisons(Verifier):
        def start(self, state: ClusterState, connector: Connector, *_: Any) -> VerifyRun:
            begun.append(connector.name)
            return VerifyRun(connector.name, connector.incarnation, "good", "w", 1, 1.0)

    cluster: Any = _Cluster(view)
    await VerifySchedule(cluster, Comparisons("w", {})).look()
    await renew(cluster, 60.0)
    return begun


def followed(view: View) -> list[str]:
    """Follows the settings as the services of a worker do; returns the sinks whose comparison began."""
    term = Term(None, 5)
    leader_claim.reason_not_to_claim(view.state, term, leader_claim.ClusterIdentity("k", "g", (), "b"))
    list(leader_claim.new_leader_records(view.state, term, None))
    follower = loggers.LogLevelFollower()
    follower.apply_changes({})
    with patch.object(loggers.levels, "change"), patch.dict(loggers._modified_ms):
        follower.apply_changes(view.state.settings)
    # Nothing of it waits.
    with pytest.raises(StopIteration) as ended:
        _looked(view).send(None)
    begun: list[str] = ended.value.value
    return begun


# --- rows, and lines of processes -----------------------------------------------------------------------------------

ROW = json.dumps({"before": None, "after": {"id": 1, "x": "y"}, "op": "u", "ts_ms": 1, "transaction": None,
                  "source": {"schema": "public", "table": "t", "lsn": 5, "commit_lsn": 6}}).encode()  # fmt: skip
GOOD_ROWS = (
    Poison("rows", b'{"id":1}', ROW),
    Poison("rows", b'{"schema":{},"payload":{"id":1}}', b'{"schema":{},"payload":' + ROW + b"}"),
    Poison("rows", b'{"id":1}', b'{"id":1,"__op":"u","__deleted":"false"}', (("cdc.unchanged", b"0"),)),
    Poison("rows", b"\0\0\0\0\1\2", b"\0\0\0\0\1\2"),
)
ROW_FILTER = ChangeFilter(tables=("t", "public.t"), key=("id=1",), where=("x=y",))


def read_rows(*poisons: Poison) -> None:
    """Reads them as `changes`, `tail` and `explain` do; only an error `schema.*` counts as unreadable there."""
    stored = StoredSchema(1, avro.fingerprint_of_text(TEXT), TEXT)
    reader = ChangeReader(lambda _: stored)
    for poison in poisons:
        try:
            change = reader.change(message(poison))
        except CdcError as error:
            if not error.code.startswith("schema."):
                raise
            continue
        ROW_FILTER.takes(change)
        json.dumps(change)


GROUP = b"CGMDv2:\x05\0\0\0g\0w1-1\0"


def read_group(metadata: bytes) -> None:
    """Reads the group's metadata as a member does whose broker, or whose group, is not what it seems."""
    with contextlib.suppress(ValueError):
        leadership.proof_of(metadata)
    client = metadata.decode(errors="replace")
    with contextlib.suppress(CdcError):
        leadership.check_group_members([client], "g", "0" * 12)


CHILD = TaskChild(AssignedTask("good", "i", 0, 1), "f" * 16, TaskLimits())
LONG_WAIT = b'{"type":"beat","n":1,"phase":"running","allow_s":' + b"9" * 400 + b"}"
GOOD_LINES = tuple(
    json.dumps(each).encode()
    for each in (
        {"type": "beat", "n": 1, "phase": "running", "allow_s": 1.0, "doing": "x"},
        {"type": "status", "state": "FAILED", "error": {"code": "x.y", "kind": "data", "message": "m", "hint": "h"}},
        {"type": "metrics", "position": {"lsn": 1}, "offsets": {"t": 1}, "records": 1},
        {"type": "topics", "topics": ["a"]},
        {"key": "a", "severity": "error", "code": "x.y", "message": "m", "hint": "h"},
        {"done": True},
        {"progress": {"tables": 1}, "keys": {"a": ["b"]}},
        {"result": {"tables": [{"found": [1]}]}},
        {"error": {"code": "x.y", "kind": "data", "message": "m", "hint": "h"}},
        {"change": {"table": "t"}},
        {"id": 1, "pid": 5},
        {"ready": True, "pid": 5, "threads": 1},
    )
)


def read_line(line: bytes) -> None:
    """Reads a line as the worker reads those of its children, each of which may be broken."""
    detector = HangDetector(5.0, 5.0)
    heard = messages.message_of(line)
    if heard is not None:
        detector.message_received(heard)
        _ = detector.hangs
        found = messages.event_of(CHILD.task, heard)
        if isinstance(found, TaskReport):
            messages.position_of(found.metrics)
            to_json(found.metrics)
    read_findings(line)
    changes.event_of(line + b"\n")
    run = VerifyRun("c", "i", "s", "w", 1, 1.0)
    Verifier("w", {}).said(run, line)
    to_json(run.record())


READERS: Mapping[str, Callable[[Poison], object]] = {
    "configs": read_configs,
    "status": read_status,
    "offsets": read_offsets,
    "schemas": read_schemas,
}
