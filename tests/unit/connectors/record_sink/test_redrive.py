"""What a dead letter says of its record, what is shown of it, and how it looks when it fails again."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from cdcworker.connectors.api.sink import DeadLetterFilter, LedgerAccess
from cdcworker.connectors.record_sink.connector import Nowhere, RecordSink
from cdcworker.connectors.record_sink.dead_letters import PREFIX, LetterForm, Refused
from cdcworker.connectors.record_sink.errors import RECORD_REFUSED
from cdcworker.connectors.record_sink.letter_topic import Origin, RecordAgain, letter_of
from cdcworker.connectors.record_sink.redrive import RedrivenForm, _is_meant, _shares
from cdcworker.connectors.registry.names import lookup
from cdcworker.connectors.targets.stdout.connector import StdoutSink
from cdcworker.schemas.errors import CdcError


class Message:
    def __init__(self, topic="dead", partition=0, offset=7, headers=(), key=b"k", value=b"secret"):
        self._given = (topic, partition, offset, list(headers), key, value)

    def topic(self):
        return self._given[0]

    def partition(self):
        return self._given[1]

    def offset(self):
        return self._given[2]

    def headers(self):
        return self._given[3]

    def key(self):
        return self._given[4]

    def value(self):
        return self._given[5]

    def timestamp(self):
        return (1, 1_234)

    def __len__(self):
        return 6


def letter(form=None, **more):
    refused = Refused(Message("shop.t", 2, 5, [("own", b"x")], **more), "TASK_PUT", CdcError(RECORD_REFUSED, "why"))
    made = (form or LetterForm("c", 0, True, "Class")).letter(refused)
    return Message(headers=made.headers, key=made.key, value=made.value), made


def test_a_letter_says_where_its_record_was_and_keeps_its_time():
    stored, made = letter()
    assert made.timestamp_ms == 1_234
    found = letter_of(stored)
    assert (found.origin, found.connector, found.code, found.cause) == (
        Origin("shop.t", 2, 5),
        "c",
        RECORD_REFUSED,
        "why",
    )
    assert found.told() == {
        "topic": "shop.t", "partition": 2, "offset": 5, "code": RECORD_REFUSED, "cause": "why", "at_ms": 1_234,
        "key_bytes": 1, "value_bytes": 6,
    }  # fmt: skip


def test_the_text_of_another_programs_error_is_not_told():
    said = {
        "topic": b"t",
        "partition": b"0",
        "offset": b"1",
        "exception.class.name": b"org.apache.kafka.X",
        "exception.message": b"s3cret",
    }
    found = letter_of(Message(headers=[(PREFIX + name, value) for name, value in said.items()]))
    assert (found.origin, found.code, found.cause) == (Origin("t", 0, 1), "org.apache.kafka.X", "")


@pytest.mark.parametrize("offset", [b"", b"-1", b"1x", b"\xff", None])
def test_a_letter_without_a_place_is_shown_at_its_own(offset):
    said = {"topic": b"t", "partition": b"0", "offset": offset}
    found = letter_of(Message(headers=[(PREFIX + name, value) for name, value in said.items()]))
    assert found.origin is None
    assert found.place == Origin("dead", 0, 7)


def test_a_record_that_is_sent_again_has_its_own_headers_and_one_of_two_places():
    found = letter_of(letter()[0])
    origin = found.origin
    again = RecordAgain(found, origin, origin)
    assert (again.topic(), again.partition(), again.offset(), again.headers()) == ("shop.t", 2, 5, [("own", b"x")])
    as_letter = RecordAgain(found, origin, Origin("dead", 0, 7))
    assert (as_letter.topic(), as_letter.partition(), as_letter.offset()) == ("shop.t", 0, 7)
    failed = RedrivenForm("c", 0, True, "Class").letter(
        Refused(as_letter, "TASK_PUT", CdcError(RECORD_REFUSED, "still"))
    )
    assert letter_of(Message(headers=failed.headers)).origin == origin
    assert letter_of(Message(headers=failed.headers)).cause == "still"


def test_each_connector_of_a_shared_topic_has_its_own_letters():
    found = letter_of(letter()[0])
    assert _is_meant(SimpleNamespace(connector="c"), found, "")
    assert not _is_meant(SimpleNamespace(connector="other"), found, "")
    assert not _is_meant(SimpleNamespace(connector="c"), found, "another.topic")


def test_a_further_request_ends_where_the_first_would_have():
    done = SimpleNamespace(begins={("d", n): n for n in range(3)}, ends={("d", n): 50 for n in range(3)})
    assert list(_shares(done, ("", -1, -1))) == [(0, 0, 50), (1, 1, 50), (2, 2, 50)]
    assert list(_shares(done, ("d", 1, 30))) == [(1, 1, 30), (2, 2, 50)]


BY = {
    "http-sink": ({"http.url": "http://a/"}, "record"),
    "jdbc-sink": ({"connection.url": "jdbc:postgresql://a/d", "connection.username": "u"}, "letter"),
    "kafka": ({"target.bootstrap.servers": "a:1"}, ""),
    "redis": ({"redis.hosts": "a"}, "letter"),
    "s3": ({"warehouse.path": "/tmp/x"}, ""),
}


@pytest.mark.parametrize("name", BY)
def test_by_which_place_a_target_knows_a_record(name):
    given, wanted = BY[name]
    config = {"topics": "t", "connector.class": name, "errors.deadletterqueue.topic.name": "d", **given}
    sink = lookup(name).load()(config)
    assert sink.redrives_by(sink.config_def.parse(config)) == wanted
    if not wanted:
        with pytest.raises(CdcError) as error:
            sink.redrive(LedgerAccess("c"), DeadLetterFilter())
        assert error.value.code == "sink.letters_elsewhere"


def test_rows_of_redis_are_known_by_their_own_places():
    config = {"topics": "t", "connector.class": "redis", "redis.hosts": "a", "redis.type": "HASH"}
    sink = lookup("redis").load()(config)
    assert sink.redrives_by(sink.config_def.parse(config)) == "record"


@pytest.mark.parametrize(("headers", "severities"), [("false", ["note"]), ("true", [])])
def test_the_doctor_says_that_letters_need_their_headers(headers, severities):
    class Sink(RecordSink):
        config_def = StdoutSink.config_def

        def open_target(self, place):
            return Nowhere()

    named = {"errors.deadletterqueue.topic.name": "d", "errors.deadletterqueue.context.headers.enable": headers}
    assert [one.severity for one in Sink({"topics": "t", "file": "/tmp/x", **named}).check()] == severities


@pytest.mark.parametrize("asked", [DeadLetterFilter(topic="t"), DeadLetterFilter()])
def test_a_request_that_cannot_be_met_is_refused_by_name(asked):
    sink = lookup("http-sink").load()({"topics": "t", "connector.class": "http-sink", "http.url": "http://a/"})
    for do in (sink.redrive, sink.dead_letters):
        if do == sink.dead_letters and asked.topic:
            continue
        with pytest.raises(CdcError) as error:
            do(LedgerAccess("c"), asked)
        assert error.value.code == "sink.letters_elsewhere"
