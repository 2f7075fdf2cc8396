"""What a dead letter says of its record, what is shown of it, and how it looks when it fails again."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from cdcworker.connectors.api.sink import DeadLetterFilter, LedgerAccess
from cdcworker.connectors.record_sink.dead_letters import OWN, PREFIX, LetterForm, Refused, unplaced_again
from cdcworker.connectors.record_sink.errors import LETTER_WITHOUT_PLACE, RECORD_REFUSED
from cdcworker.connectors.record_sink.group_offsets import Committed, note_of, parse_note
from cdcworker.connectors.record_sink.letter_offsets import next_owner, record_ids
from cdcworker.connectors.record_sink.letter_topic import LetterOrigin, RecordAgain, letter_of
from cdcworker.connectors.record_sink.progress import Done
from cdcworker.connectors.record_sink.redrive import Outcome, RedrivenForm, RedriveParts, _is_meant, _shares, _Way
from cdcworker.connectors.registry.names import lookup
from cdcworker.schemas.errors import CdcError


class Message:
    at = 1_234

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
        return (1, self.at)

    def __len__(self):
        return len(self._given[5])


def letter(form=None, **more):
    refused = Refused(
        Message("shop.t", 2, 5, [("own", b"x")], **more), "TASK_PUT", CdcError(RECORD_REFUSED, "why"), "of-the-topic"
    )
    made = (form or LetterForm("c", 0, True, "Class")).letter(refused)
    return Message(headers=made.headers, key=made.key, value=made.value), made


def test_a_letter_says_where_its_record_was_and_keeps_its_time_while_the_broker_stamps_it():
    stored, made = letter()
    assert "timestamp_ms" not in made._fields
    stored.at = 99_999
    found = letter_of(stored)
    assert (found.origin, found.connector, found.code, found.cause) == (
        LetterOrigin("shop.t", 2, 5),
        "c",
        RECORD_REFUSED,
        "why",
    )
    assert found.told() == {
        "topic": "shop.t", "partition": 2, "offset": 5, "code": RECORD_REFUSED, "cause": "why", "at_ms": 99_999,
        "key_bytes": 1, "value_bytes": 6,
    }  # fmt: skip
    assert RecordAgain(found, found.origin, found.origin).timestamp() == (1, 1_234)


def test_a_letter_without_headers_of_connect_says_its_place_all_the_same():
    stored, made = letter(LetterForm("c", 0, False, "Class"))
    assert [name for name, _ in made.headers] == ["own", OWN]
    found = letter_of(stored)
    assert (found.origin, found.connector, found.topic_id) == (LetterOrigin("shop.t", 2, 5), "c", "of-the-topic")


def test_letters_that_connect_wrote_have_the_time_of_their_record_from_the_broker():
    said = {"topic": b"t", "partition": b"0", "offset": b"1"}
    found = letter_of(Message(headers=[(PREFIX + name, value) for name, value in said.items()]))
    assert (found.topic_id, RecordAgain(found, found.origin, found.origin).timestamp()) == ("", (1, 1_234))


@pytest.mark.parametrize(
    ("topic", "partition", "offset"),
    [
        (b"bad topic", b"0", b"1"),
        (b".", b"0", b"1"),
        (b"x" * 250, b"0", b"1"),
        (b"t", b"1" * 12, b"1"),
        (b"t", b"0", b"1" * 19),
    ],
)
def test_a_place_that_nothing_can_have_is_none(topic, partition, offset):
    said = {"topic": topic, "partition": partition, "offset": offset}
    assert letter_of(Message(headers=[(PREFIX + name, value) for name, value in said.items()])).origin is None


def test_a_letter_without_a_place_stays_as_it_came_and_is_the_connectors():
    again = unplaced_again(
        LetterForm("c", 0, True, "Class"), Message(headers=[("own", b"x")]), CdcError(LETTER_WITHOUT_PLACE, "no")
    )
    found = letter_of(Message(headers=again.headers))
    assert (again.key, again.value, again.headers[0]) == (b"k", b"secret", ("own", b"x"))
    assert (found.origin, found.connector, found.code) == (None, "c", LETTER_WITHOUT_PLACE)


class Lane:
    """Takes letters, and fails those whose key is `bad`."""

    def __init__(self, progress, way):
        self.progress, self.way, self.waiting, self.seen = progress, way, [], []

    def start(self): ...
    def end(self): ...
    def join(self, _): ...

    def offer(self, messages):
        self.waiting += messages
        self.seen.append([(ids, message.partition(), message.offset()) for message, ids in messages])

    def watch(self):
        self.way(self)

    def withdraw(self):
        self.waiting.clear()

    @property
    def is_idle(self):
        return not self.waiting

    def done(self, count, letters=()):
        taken, self.waiting = self.waiting[:count], self.waiting[count:]
        self.progress.done(Done({}, list(letters), 0, len(taken), {}, {}, len(taken)))


def way_of(by="record", lane=lambda lane: lane.done(len(lane.waiting)), connector="c"):
    made = []

    def open_lane(_, progress, __):
        made.append(Lane(progress, lane))
        return made[0]

    brokers = SimpleNamespace(id_of=lambda topic: f"id.{topic}")
    return _Way(RedriveParts(connector, "dead", brokers, None, open_lane, by), False), made[0]


def stored(offset, value=b"v", topic_id="old-id"):
    refused = Refused(Message("t", 0, offset + 100), "TASK_PUT", CdcError(RECORD_REFUSED, "why"), topic_id)
    return letter_of(Message(offset=offset, headers=LetterForm("c", 0, True, "C").letter(refused).headers, value=value))


def test_a_record_has_the_id_that_its_letter_says_whatever_the_topics_is_now():
    way, lane = way_of()
    list(way.steps([stored(0)], 1, Outcome(), float("inf")))
    assert lane.seen == [[("old-id", 0, 100)]]


def test_a_letter_that_says_no_id_has_that_of_itself_but_for_rows_that_have_an_order():
    seen = []
    for by in ("record", "row", "letter"):
        way, lane = way_of(by)
        list(way.steps([stored(0, topic_id="")], 1, Outcome(), float("inf")))
        seen += lane.seen[0]
    ids = record_ids("id.dead", "c")
    assert seen == [(ids, 0, 0), ("id.t", 0, 100), (ids, 0, 0)]
    assert ids != record_ids("id.dead", "another"), "connectors that share a topic"
    assert len(ids) <= 191, "the ledger of MySQL"


def test_steps_grow_while_the_target_is_quick_and_hold_no_more_than_may_fail_at_once():
    way, lane = way_of()
    list(way.steps([stored(n) for n in range(20)], 20, Outcome(), float("inf")))
    assert [len(each) for each in lane.seen] == [1, 2, 4, 8, 5]
    way._count = 200
    lane.seen.clear()
    list(way.steps([stored(n, b"x" * 3_000_000) for n in range(3)], 3, Outcome(), float("inf")))
    assert [len(each) for each in lane.seen] == [1, 1, 1]


def test_at_the_deadline_what_is_done_is_done_with():
    way, _ = way_of(lane=lambda lane: lane.done(2))
    way._count = 200
    out = Outcome()
    (step,) = way.steps([stored(n) for n in range(5)], 5, out, 0.0)
    assert (step.behind, out.redriven, step.error) == (2, 2, None)


def test_what_is_done_before_the_target_takes_no_more_is_done_with():
    def stuck(lane):
        if len(lane.waiting) == 5:
            lane.done(2)
            lane.progress.try_failed(CdcError(RECORD_REFUSED, "no"))
        lane.withdraw = lambda: None

    way, _ = way_of(lane=stuck)
    way._count = 200
    (step,) = way.steps([stored(n) for n in range(5)], 5, Outcome(), 0.0)
    assert (step.behind, step.error.code) == (2, "sink.target_unavailable")


def test_who_moves_the_offset_of_letters_goes_by_notes_and_by_no_clock():
    clients = SimpleNamespace(group="g")
    far = 10**15
    found = {("d", 0): Committed(3, (far, 1), "x"), ("d", 1): Committed(3, (-1, -1), "")}
    owner = next_owner(clients, found)
    assert (owner.epoch[0], owner.id) == (far + 1, "g:redrive")
    assert parse_note(note_of(owner)) == ((-1, -1), ""), "a task that reads the topic"
    assert parse_note(note_of(owner), owner.notes) == (owner.epoch, owner.id)


def test_the_text_of_another_programs_error_is_not_told():
    said = {
        "topic": b"t",
        "partition": b"0",
        "offset": b"1",
        "exception.class.name": b"org.apache.kafka.X",
        "exception.message": b"s3cret",
    }
    found = letter_of(Message(headers=[(PREFIX + name, value) for name, value in said.items()]))
    assert (found.origin, found.code, found.cause) == (LetterOrigin("t", 0, 1), "org.apache.kafka.X", "")


@pytest.mark.parametrize("offset", [b"", b"-1", b"1x", b"\xff", None])
def test_a_letter_without_a_place_is_shown_at_its_own(offset):
    said = {"topic": b"t", "partition": b"0", "offset": offset}
    found = letter_of(Message(headers=[(PREFIX + name, value) for name, value in said.items()]))
    assert found.origin is None
    assert found.place == LetterOrigin("dead", 0, 7)


def test_a_record_that_is_sent_again_has_its_own_headers_and_one_of_two_places():
    found = letter_of(letter()[0])
    origin = found.origin
    again = RecordAgain(found, origin, origin)
    assert (again.topic(), again.partition(), again.offset(), again.headers()) == ("shop.t", 2, 5, [("own", b"x")])
    as_letter = RecordAgain(found, origin, LetterOrigin("dead", 0, 7))
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
    assert list(_shares(done, DeadLetterFilter())) == [(0, 0, 50), (1, 1, 50), (2, 2, 50)]
    assert list(_shares(done, DeadLetterFilter(after=("d", 1, 30)))) == [(1, 1, 30), (2, 2, 50)]


def test_a_further_trial_begins_where_the_first_came_to():
    done = SimpleNamespace(begins={("d", n): n for n in range(3)}, ends={("d", n): 50 for n in range(3)})
    assert list(_shares(done, DeadLetterFilter(after=("d", 1, 30), dry_run=True))) == [(1, 30, 50), (2, 2, 50)]


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
    assert sink.redrives_by(sink.config_def.parse(config)) == "row"


@pytest.mark.parametrize("asked", [DeadLetterFilter(topic="t"), DeadLetterFilter()])
def test_a_request_that_cannot_be_met_is_refused_by_name(asked):
    sink = lookup("http-sink").load()({"topics": "t", "connector.class": "http-sink", "http.url": "http://a/"})
    for do in (sink.redrive, sink.dead_letters):
        if do == sink.dead_letters and asked.topic:
            continue
        with pytest.raises(CdcError) as error:
            do(LedgerAccess("c"), asked)
        assert error.value.code == "sink.letters_elsewhere"
