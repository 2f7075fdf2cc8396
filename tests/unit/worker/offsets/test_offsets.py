"""Positions in the log and ledgers in targets, without servers."""

from __future__ import annotations

import json
import sys

import pytest
from cdcworker.coordinator.api import LogRecord
from cdcworker.coordinator.kafka import errors as kafka_errors
from cdcworker.coordinator.log.config_fold import connector_record, task_set_record
from cdcworker.coordinator.log.offset_records import OffsetRecord, offset_key, offset_value, offsets_partition
from cdcworker.coordinator.model import Connector, TaskSet
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.offsets import child as offsets_main
from cdcworker.worker.offsets.model import ConnectorOffset
from cdcworker.worker.offsets.sink import SinkOffsetsClient, run_child
from cdcworker.worker.offsets.source import OffsetsTopic, SourceOffsets
from cdcworker.worker.protocol.task_spec import ClusterTopics

BARRIER = 900
GEN = {"connector.class": "datagen", "topic.prefix": "g", "tasks.max": "2"}


def connector(config=GEN, **more):
    return Connector("c", "inc", 3, config, more.pop("target_state", "STOPPED"), more.pop("kind", "source"), **more)


def key(task, name="c"):
    return offset_key(name, {"server": "g", "task": task})


class World:
    """Two topics, and producers that say what became of them."""

    def __init__(self):
        self.topics = ClusterTopics("configs", "offsets", "status", "schemas")
        self.stored: list[LogRecord] = []
        self.set_state(connector(), BARRIER)
        self.did: list[tuple] = []
        self.commit_error = None
        self.after_commit = lambda: None
        place = OffsetsTopic({}, "g", self.topics, "w", 3)
        self.offsets = SourceOffsets(place, self.read, lambda name: RecordedProducer(self, name))

    def set_state(self, current, barrier):
        records = [connector_record(current), task_set_record("c", TaskSet("inc", 0, (), task_epoch=barrier))]
        self.configs = [LogRecord(item.key, item.value, {"e": "1"}, offset) for offset, item in enumerate(records)]

    def read(self, topic):
        return self.configs if topic == "configs" else self.stored

    def store(self, task, position, name="c", offset=0, partition=None):
        value = offset_value(OffsetRecord("inc", 5, position)) if position is not None else None
        number = offsets_partition(name, task, 3) if partition is None else partition
        self.stored.append(LogRecord(key(task, name), value, {}, offset, number))


class RecordedProducer:
    def __init__(self, world, name):
        self.world, self.name = world, name
        world.did.append(("fence", name))

    def begin(self):
        self.world.did.append(("begin", self.name))

    def produce(self, topic, key, value, partition):
        self.world.did.append((topic, key.decode(), json.loads(value) if value else None, partition))

    def commit(self):
        if self.world.commit_error:
            raise self.world.commit_error
        self.world.did.append(("commit", self.name))
        self.world.after_commit()

    def close(self):
        self.world.did.append(("close", self.name))


@pytest.fixture
def world():
    return World()


def test_the_last_position_of_each_task_is_shown(world):
    world.store(1, {"v": 1, "next": 4})
    world.store(0, {"v": 1, "next": 1})
    world.store(0, {"v": 1, "next": 2}, offset=1)
    world.store(0, {"v": 1, "next": 9}, name="other")
    world.store(2, None)
    assert world.offsets.read(connector()) == [
        ConnectorOffset({"server": "g", "task": 0}, {"v": 1, "next": 2}),
        ConnectorOffset({"server": "g", "task": 1}, {"v": 1, "next": 4}),
    ]


def test_only_positions_of_the_present_config_are_where_its_tasks_start(world):
    world.store(0, {"next": 5})
    world.store(1, {"next": 6})
    before = connector({**GEN, "topic.prefix": "before", "tasks.max": "1"})
    fewer = connector({**GEN, "tasks.max": "1"})
    shown = world.offsets.read_own
    assert [item.offset for item in shown(connector())] == [{"next": 5}, {"next": 6}]
    assert [item.offset for item in shown(fewer)] == [{"next": 5}]
    assert shown(before) == []


def test_what_is_not_a_position_is_left_out_and_what_cannot_be_read_is_not(world):
    world.stored.append(LogRecord("not json", {"a": 1}))
    assert world.offsets.read(connector()) == []
    world.stored.append(LogRecord(key(0), {"v": 99}))
    with pytest.raises(CdcError, match=r"coordinator\.offsets_format"):
        world.offsets.read(connector())


def test_positions_are_altered_in_one_transaction_behind_the_fences_of_their_tasks(world):
    world.store(0, {"v": 1, "next": 7})
    changes = [
        ConnectorOffset({"task": 1, "server": "g"}, {"v": 1, "next": 3}),
        ConnectorOffset({"server": "g", "task": 0}, None),
    ]
    assert world.offsets.alter(connector(), BARRIER, changes) is True
    value = {"v": 1, "incarnation": "inc", "task_epoch": BARRIER, "position": {"v": 1, "next": 3}}
    ids = ["g:c:0", "g:c:0:other", "g:c:1", "g:c:1:other"]
    assert world.did == [
        *(("fence", name) for name in ids),
        ("begin", "g:c:0"),
        ("offsets", key(1), value, offsets_partition("c", 1, 3)),
        ("offsets", key(0), None, offsets_partition("c", 0, 3)),
        ("commit", "g:c:0"),
        *(("close", name) for name in ids),
    ]


def test_a_reset_forgets_everything_also_of_tasks_that_are_no_more_and_where_it_lies(world):
    world.store(0, {"v": 1, "next": 7})
    world.store(5, {"v": 1, "next": 7}, partition=2)
    assert world.offsets.alter(connector(), BARRIER, None) is True
    forgotten = [item for item in world.did if item[0] == "offsets"]
    assert forgotten == [
        ("offsets", key(0), None, offsets_partition("c", 0, 3)),
        ("offsets", key(5), None, 2),
    ]
    world.stored, world.did = [], []
    assert world.offsets.alter(connector(), BARRIER, None) is True
    assert world.did == []


def test_a_partition_that_nobody_reads_is_refused_with_those_that_there_are(world):
    with pytest.raises(CdcError) as caught:
        world.offsets.alter(connector(), BARRIER, [ConnectorOffset({"server": "g", "task": 2}, {"v": 1, "next": 3})])
    assert caught.value.code == "offsets.unknown_partition"
    assert '{"server":"g","task":0}, {"server":"g","task":1}' in caught.value.message
    assert world.did == []


def test_offsets_that_were_read_can_be_written_back_after_a_reset_whatever_tasks_max_is_by_now(world):
    for task in range(3):
        world.store(task, {"v": 1, "next": task})
    read = world.offsets.read(connector({**GEN, "tasks.max": "3"}))
    assert len(read) == 3
    for task in range(3):
        world.store(task, None, offset=1)
    now = connector({**GEN, "tasks.max": "1"})
    assert world.offsets.read(now) == []
    assert world.offsets.alter(now, BARRIER, read) is True
    written = [item[2]["position"] for item in world.did if item[0] == "offsets"]
    assert written == [item.offset for item in read]
    world.did = []
    assert world.offsets.alter(now, BARRIER, None) is True
    assert world.did == []


def test_a_position_that_no_task_could_start_from_is_refused(world):
    for position in ({"v": 1}, {"v": 2, "next": 1}, {"v": 1, "next": -1}):
        changes = [
            ConnectorOffset({"server": "g", "task": 1}, None),
            ConnectorOffset({"server": "g", "task": 0}, position),
        ]
        with pytest.raises(CdcError, match=r"\[datagen\.position_invalid\]") as caught:
            world.offsets.alter(connector(), BARRIER, changes)
        assert (caught.value.code, caught.value.where) == ("offsets.bad_position", {"index": 1})
    assert world.did == []


@pytest.mark.parametrize(
    ("now", "barrier"),
    [
        (connector(target_state="RUNNING"), BARRIER),
        (connector(), BARRIER + 1),
        (connector(target_state="PAUSED"), BARRIER),
    ],
)
def test_a_connector_that_was_started_before_the_fence_is_left_alone(world, now, barrier):
    world.set_state(now, barrier)
    with pytest.raises(CdcError, match=r"offsets\.interrupted"):
        world.offsets.alter(connector(), BARRIER, [ConnectorOffset({"server": "g", "task": 0}, None)])
    assert [what for what, *_ in world.did] == ["fence", "fence", "close", "close"]


def test_a_connector_that_starts_before_the_commit_is_told(world):
    world.after_commit = lambda: world.set_state(connector(target_state="RUNNING"), BARRIER)
    with pytest.raises(CdcError, match=r"offsets\.interrupted"):
        world.offsets.alter(connector(), BARRIER, [ConnectorOffset({"server": "g", "task": 0}, None)])


def test_a_task_that_takes_its_id_back_is_told(world):
    world.commit_error = CdcError(kafka_errors.FENCED, "commit: fenced")
    with pytest.raises(CdcError, match=r"offsets\.interrupted"):
        world.offsets.alter(connector(), BARRIER, [ConnectorOffset({"server": "g", "task": 0}, None)])
    assert world.did[-2:] == [("close", "g:c:0"), ("close", "g:c:0:other")]


# -- sinks --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def sink(tmp_path):
    config = {"connector.class": "file-sink", "file": str(tmp_path / "out"), "topics": "t"}
    providers = {"file.connector.paths": str(tmp_path)}
    found = SinkOffsetsClient(providers, lambda: {"t": 2, "u": 1}, ends, offsets_main.answer)
    return found, connector(config, kind="sink")


def ends(topic, numbers):
    return {number: {("t", 0): 9, ("t", 1): 5, ("u", 0): 0}[topic, number] for number in numbers}


def kafka(topic, partition):
    return {"kafka_topic": topic, "kafka_partition": partition}


def test_a_ledger_is_read_altered_and_forgotten(sink, tmp_path):
    offsets, one = sink
    (tmp_path / "out").write_bytes(b"a\nb\n")
    assert offsets.read(one) == []
    changes = [ConnectorOffset(kafka("t", 1), {"kafka_offset": 5}), ConnectorOffset(kafka("u", 0), {"kafka_offset": 0})]
    assert offsets.alter(one, 7, changes) is True
    assert offsets.read(one) == changes
    assert offsets.alter(one, 8, [ConnectorOffset(kafka("u", 0), None)]) is True
    assert offsets.read(one) == changes[:1]
    assert (tmp_path / "out").read_bytes() == b"a\nb\n"
    assert offsets.alter(one, 8, None) is True
    assert offsets.alter(one, 9, None) is True
    assert offsets.read(one) == []


@pytest.mark.parametrize(
    ("topic", "partition", "why"), [("x", 0, "does not exist"), ("t", 2, "has 2 partitions"), ("t", -1, "has 2")]
)
def test_a_partition_that_there_is_not_is_refused(sink, topic, partition, why):
    offsets, one = sink
    with pytest.raises(CdcError, match=why) as caught:
        offsets.alter(
            one,
            7,
            [ConnectorOffset(kafka("t", 0), None), ConnectorOffset(kafka(topic, partition), {"kafka_offset": 1})],
        )
    assert caught.value.code == "offsets.unknown_partition"


def test_an_offset_behind_the_end_is_refused_and_nothing_is_altered(sink):
    offsets, one = sink
    offsets.alter(
        one,
        7,
        [ConnectorOffset(kafka("t", 0), {"kafka_offset": 9}), ConnectorOffset(kafka("t", 1), {"kafka_offset": 5})],
    )
    before = offsets.read(one)
    changes = [ConnectorOffset(kafka("t", 0), {"kafka_offset": 3}), ConnectorOffset(kafka("t", 1), {"kafka_offset": 6})]
    for dry_run in (True, False):
        with pytest.raises(CdcError, match="ends at offset 5: 6 is past it") as caught:
            offsets.alter(one, 8, changes, dry_run=dry_run)
        assert (caught.value.code, caught.value.where) == ("offsets.bad_position", {"index": 1})
    assert offsets.read(one) == before


def test_an_older_barrier_than_the_ledgers_is_an_interruption(sink):
    offsets, one = sink
    offsets.alter(one, 8, None)
    with pytest.raises(CdcError, match=r"offsets\.interrupted"):
        offsets.alter(one, 7, None)


def test_another_sinks_ledger_is_neither_shown_nor_altered(sink):
    offsets, one = sink
    offsets.alter(one, 8, None)
    other = Connector("d", "inc", 3, one.config, "STOPPED", "sink")
    for call in (lambda: offsets.read(other), lambda: offsets.alter(other, 9, None)):
        with pytest.raises(CdcError, match=r"\[file.taken\]") as caught:
            call()
        assert caught.value.code == "offsets.refused"


def test_a_connector_without_a_ledger_and_secrets_are_not_told():
    question = {"do": "read", "connector": "c", "config": {**GEN}, "epoch": [0, 0], "providers": {}, "changes": None}
    assert offsets_main.answer(question)["error"]["code"] == "offsets.not_offered"
    question["config"] = {
        "connector.class": "spark",
        "warehouse.password": "hunter2",
        "warehouse.hostname": "x.hunter2",
    }
    assert "hunter2" not in json.dumps(offsets_main.answer(question))


def test_a_child_answers_in_time_or_not_at_all():
    question = {"do": "read", "connector": "c", "config": GEN, "epoch": [0, 0], "providers": {}, "changes": None}
    assert run_child(question)["error"]["code"] == "offsets.not_offered"
    for program in ("import time; time.sleep(60)", "print('{')"):
        with pytest.raises(CdcError, match=r"offsets\.unfinished"):
            run_child(question, 0.5, (sys.executable, "-c", program))
