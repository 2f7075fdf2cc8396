"""Registration of schemas: committed and read back before an id is given out."""

from __future__ import annotations

import json

import pytest
from cdcworker.coordinator.api import LogRecord
from cdcworker.coordinator.kafka.errors import TIMEOUT
from cdcworker.schemas.change import Position
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.log import Registration, RegistrationMeta
from cdcworker.worker.source import schema_registrar as source_schemas
from cdcworker.worker.source.schema_registrar import SchemaRegistrar


class Topic:
    """A schema topic: what is committed, with a cursor per reader."""

    def __init__(self) -> None:
        self.records: list[tuple[str, dict]] = []
        self.opened = self.closed = 0

    def reader(self):
        self.opened += 1
        topic, at = self, 0

        class Reader:
            def read_to_end(self, timeout_s):
                nonlocal at
                new = [LogRecord(key, value) for key, value in topic.records[at:]]
                at = len(topic.records)
                return new

            def close(self):
                topic.closed += 1

        return Reader()


class Producer:
    def __init__(self, topic: Topic, *, lose: bool = False) -> None:
        self._topic, self._lose = topic, lose
        self._open: list[tuple[str, dict]] = []
        self.commits = 0
        self.fail: CdcError | None = None

    def begin(self) -> None:
        self._open = []

    def produce(self, topic, key, value, partition, headers=None) -> None:
        assert (topic, partition) == ("schemas", 0)
        self._open.append((key.decode(), json.loads(value)))

    def commit(self) -> None:
        if self.fail:
            raise self.fail
        self.commits += 1
        if not self._lose:
            self._topic.records += self._open

    def abort(self) -> None: ...

    def close(self) -> None: ...


def registration(name: str = "id", lsn: int = 1) -> Registration:
    schema = {"type": "record", "name": "Value", "namespace": "p.t", "fields": [{"name": name, "type": "long"}]}
    return Registration("p.t-value", schema, RegistrationMeta(1, ("public", "t"), Position(lsn, 0, 0)))


def registrar(topic: Topic, producer: Producer) -> SchemaRegistrar:
    return SchemaRegistrar(producer, "schemas", topic.reader)


def test_a_new_schema_is_committed_once_and_found_again():
    topic = Topic()
    producer = Producer(topic)
    register = registrar(topic, producer)
    ids = register([registration()])
    assert producer.commits == 1
    assert [key.partition("/")[0] for key, _ in topic.records] == ["schema", "use"]
    assert register([registration()]) == ids
    assert producer.commits == 1
    assert topic.opened == 1


def test_what_another_task_registered_meanwhile_is_not_written_again():
    topic = Topic()
    one, other = Producer(topic), Producer(topic)
    first, second = registrar(topic, one), registrar(topic, other)
    second([registration("other")])
    ids = first([registration()])
    assert second([registration()]) == ids
    assert other.commits == 1


def test_an_id_is_not_given_out_before_it_is_read_back():
    topic = Topic()
    with pytest.raises(CdcError) as caught:
        registrar(topic, Producer(topic, lose=True))([registration()])
    assert caught.value.code == source_schemas.NOT_READ_BACK
    assert caught.value.retriable


def test_a_commit_without_an_answer_ends_the_registration():
    topic = Topic()
    producer = Producer(topic)
    producer.fail = CdcError(TIMEOUT, "lost")
    with pytest.raises(CdcError):
        registrar(topic, producer)([registration()])
    assert topic.records == []


def test_between_bursts_the_log_is_let_go(monkeypatch):
    topic = Topic()
    register = registrar(topic, Producer(topic))
    ids = register([registration()])
    register.close_idle()
    assert topic.closed == 0
    monkeypatch.setattr(source_schemas, "IDLE_CLOSE_S", -1.0)
    register.close_idle()
    assert topic.closed == 1
    assert register([registration()]) == ids
    assert topic.opened == 2


def test_the_log_may_be_read_ahead_of_the_first_registration():
    topic = Topic()
    register = registrar(topic, Producer(topic))
    register.warm()
    register([registration()])
    assert topic.opened == 1


def test_a_log_that_cannot_be_read_ahead_is_read_at_the_first_registration():
    topic = Topic()
    opened = []

    def fail_once():
        opened.append(1)
        if len(opened) == 1:
            raise CdcError(TIMEOUT, "late")
        return topic.reader()

    register = SchemaRegistrar(Producer(topic), "schemas", fail_once)
    register.warm()
    assert register([registration()])
    assert len(opened) == 2
