"""A lane: order, tries, halves of a batch that is refused, dead letters, the end."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from cdcworker.connectors.api.record_target import TargetUnavailable
from cdcworker.connectors.record_sink import lane
from cdcworker.connectors.record_sink.config import EngineSettings
from cdcworker.connectors.record_sink.converters import converted
from cdcworker.connectors.record_sink.dead_letters import LetterForm
from cdcworker.connectors.record_sink.errors import RECORD_REFUSED, TARGET_UNAVAILABLE
from cdcworker.connectors.record_sink.group_offsets import Letter
from cdcworker.connectors.record_sink.lane import Lane, LaneParts
from cdcworker.connectors.record_sink.ownership import Ownership
from cdcworker.connectors.record_sink.progress import LETTER_BYTES_MAX, Done, Progress
from cdcworker.connectors.topic_reader import READ_FAILED
from cdcworker.connectors.transform_chain.chain import TransformChain
from cdcworker.schemas.errors import CdcError

JSON = {
    f"{side}.converter{name}": value
    for side in ("key", "value")
    for name, value in (("", "json"), (".schemas.enable", "false"))
}
WAIT_S = 30.0


class Message:
    """A message as Kafka's client returns it."""

    def __init__(self, offset: int, value: bytes | None, partition: int = 0) -> None:
        self._offset, self._value, self._partition = offset, value, partition

    def topic(self) -> str:
        return "t"

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int:
        return self._offset

    def key(self) -> bytes | None:
        return b'"k"'

    def value(self) -> bytes | None:
        return self._value

    def headers(self) -> list[tuple[str, bytes]]:
        return [("own", b"1")]

    def timestamp(self) -> tuple[int, int]:
        return 1, 1_000

    def __len__(self) -> int:
        return len(self._value or b"")


class Target:
    """A target in memory: refuses values that say so, and is away as often as it is told."""

    def __init__(self, away: int = 0) -> None:
        self.written: list[Any] = []
        self.sizes: list[int] = []
        self.away = away
        self.closed = False

    def write(self, batch) -> None:
        self.sizes.append(len(batch.records))
        if self.away:
            self.away -= 1
            raise TargetUnavailable(TARGET_UNAVAILABLE, "away")
        if any(record.value == "bad" for record in batch.records):
            raise CdcError(RECORD_REFUSED, "no")
        self.written += [(record.id, record.value) for record in batch.records]

    def close(self) -> None:
        self.closed = True


class World:
    def __init__(self, target: Target, **settings: Any) -> None:
        self.target, self.progress, self.ownership = target, Progress(), Ownership()
        self.ownership.proven(1e18)
        given = {"backoff_s": 0.001, "backoff_max_s": 0.002, "lanes": 1, "letters_topic": "dead", **settings}
        reader = converted(JSON, None)  # type: ignore[arg-type]  # JSON needs no schemas
        form = LetterForm("c", 0, True, "C")
        parts = LaneParts(
            target, reader, TransformChain(()), EngineSettings(**given), form, self.ownership, self.progress
        )
        self.lane = Lane(0, parts)

    def run(self, *values: bytes | None) -> dict[Any, int]:
        """Writes the values, and returns the offsets."""
        self.lane.offer([(Message(n, value), "id") for n, value in enumerate(values)])
        self.lane.start()
        ready = threading.Event()
        for _ in range(3_000):
            if self.lane.is_idle or self.progress._failed is not None:
                break
            ready.wait(0.01)
        self.lane.end()
        self.lane.join(WAIT_S)
        self.progress.raise_failed()
        return self.progress.take()[0]


def test_records_are_written_in_order_and_their_offsets_are_done():
    world = World(Target(), batch_records=2)
    assert world.run(b"1", b"2", None, b'{"a":[1]}', b"5") == {("t", 0): 5}
    assert world.target.written == [(f"id-0-{n}", value) for n, value in enumerate([1, 2, None, {"a": [1]}, 5])]
    assert world.target.sizes == [2, 2, 1]
    assert world.target.closed


def test_a_batch_ends_with_its_bytes():
    world = World(Target(), batch_bytes=500)
    world.run(*[b"1"] * 6)
    assert max(world.target.sizes) == 3


def test_a_target_that_is_away_gets_the_same_batch_again():
    world = World(Target(away=3))
    assert world.run(b"1", b"2") == {("t", 0): 2}
    assert world.target.sizes == [2, 2, 2, 2]
    assert world.progress.numbers()["retrying"] is None


@pytest.mark.parametrize("limits", [{"retries_max": 2}, {"retry_timeout_s": 0.0}])
def test_tries_end_with_the_targets_error(limits):
    world = World(Target(away=100), **limits)
    with pytest.raises(CdcError) as caught:
        world.run(b"1")
    assert caught.value.code == "sink.target_unavailable"
    assert len(world.target.sizes) == (3 if "retries_max" in limits else 1)


def test_a_refused_record_is_found_by_halves_and_the_others_are_written_in_order():
    world = World(Target(), tolerant=True)
    values = [b"%d" % n if n not in (3, 9) else b'"bad"' for n in range(12)]
    world.lane.offer([(Message(n, value), "id") for n, value in enumerate(values)])
    assert world.run() == {("t", 0): 12}
    assert [value for _, value in world.target.written] == [n for n in range(12) if n not in (3, 9)]
    assert world.progress.numbers()["dead_letters"] == 2
    assert world.progress.numbers()["changes"] == 10


def test_a_dead_letter_is_the_record_as_it_came_with_connects_headers():
    world = World(Target(), tolerant=True)
    world.lane.offer([(Message(0, b"1"), "id"), (Message(1, b"no JSON"), "id")])
    world.lane.start()
    for _ in range(3_000):
        if world.lane.is_idle:
            break
        threading.Event().wait(0.01)
    world.lane.end()
    world.lane.join(WAIT_S)
    offsets, (letter,) = world.progress.take()
    assert offsets == {("t", 0): 2}
    assert (letter.key, letter.value) == (b'"k"', b"no JSON")
    headers = dict(letter.headers)
    assert headers.pop("own") == b"1"
    assert json.loads(headers.pop("__cdcworker.letter")) == {
        "topic": "t", "topic_id": "id", "partition": 0, "offset": 1, "timestamp": 1_000, "connector": "c",
        "code": "sink.record_unreadable",
    }  # fmt: skip
    assert headers == {
        "__connect.errors.topic": b"t",
        "__connect.errors.partition": b"0",
        "__connect.errors.offset": b"1",
        "__connect.errors.connector.name": b"c",
        "__connect.errors.task.id": b"0",
        "__connect.errors.stage": b"VALUE_CONVERTER",
        "__connect.errors.class.name": b"C",
        "__connect.errors.exception.class.name": b"sink.record_unreadable",
        "__connect.errors.exception.message": b"the JSON cannot be read: no JSON",
        "__connect.errors.exception.stacktrace": b"[sink.record_unreadable] the JSON cannot be read: no JSON",
    }


def test_without_a_topic_of_dead_letters_a_refused_record_is_dropped():
    world = World(Target(), tolerant=True, letters_topic="")
    assert world.run(b"1", b'"bad"', b"3") == {("t", 0): 3}
    assert world.progress.take() == ({}, [])
    assert world.progress.numbers()["dead_letters"] == 1


def test_without_tolerance_a_refused_record_halts_the_task_behind_what_comes_before():
    world = World(Target())
    with pytest.raises(CdcError) as caught:
        world.run(b"1", b"2", b'"bad"', b"4")
    assert caught.value.where == {"topic": "t", "partition": 0, "offset": 2}
    assert [value for _, value in world.target.written] == [1, 2]
    assert world.progress.take() == ({}, [])


def test_too_many_refused_records_in_a_row_halt_the_task():
    world = World(Target(), tolerant=True, refused_in_row_max=3, batch_records=1)
    with pytest.raises(CdcError) as caught:
        world.run(b'"bad"', b'"bad"', b'"bad"', b"1", b'"bad"', b'"bad"', b'"bad"', b'"bad"', b"2")
    assert caught.value.code == "sink.dead_letters_many"
    assert [value for _, value in world.target.written] == [1]


def test_nothing_is_written_without_a_proof_of_ownership():
    world = World(Target())
    world.ownership.proven(float("-inf"))
    world.lane.offer([(Message(0, b"1"), "id")])
    world.lane.start()
    for _ in range(3_000):
        if world.ownership.is_wanted:
            break
        threading.Event().wait(0.01)
    assert world.ownership.is_wanted
    assert world.target.sizes == []
    world.lane.end()
    world.ownership.end()
    world.lane.join(WAIT_S)
    assert world.target.sizes == []
    assert world.progress.take() == ({}, [])


def test_an_unforeseen_error_of_a_target_tells_no_values():
    class Broken(Target):
        def write(self, batch):
            raise RuntimeError("row 4711")

    world = World(Broken())
    with pytest.raises(CdcError) as caught:
        world.run(b"1")
    assert caught.value.code == "internal.unexpected"
    assert "4711" not in str(caught.value)


def test_a_record_that_no_converter_expects_is_a_dead_letter():
    class Odd(Message):
        def headers(self):
            raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "row 4711")

    world = World(Target(), tolerant=True)
    world.lane.offer([(Odd(0, b"1"), "id"), (Message(1, b"2"), "id")])
    world.lane.start()
    for _ in range(3_000):
        if world.lane.is_idle or world.progress._failed is not None:
            break
        threading.Event().wait(0.01)
    world.lane.end()
    world.lane.join(WAIT_S)
    world.progress.raise_failed()
    offsets, (letter,) = world.progress.take()
    assert offsets == {("t", 0): 2}
    assert (letter.value, dict(letter.headers)["__connect.errors.stage"]) == (b"1", b"VALUE_CONVERTER")
    assert b"4711" not in b"".join(value for _, value in letter.headers if value)
    assert world.target.written == [("id-0-1", 2)]


def test_a_schema_that_kafka_does_not_tell_now_is_asked_for_again(monkeypatch):
    monkeypatch.setattr(lane, "AGAIN_S", 0.001)
    world = World(Target(), tolerant=True)
    reader, errors = world.lane._parts.reader, [CdcError(READ_FAILED, "away")] * 3

    class Away:
        def read(self, message):
            if errors:
                raise errors.pop()
            return reader.read(message)

    world.lane._parts = world.lane._parts._replace(reader=Away())
    assert world.run(b"1") == {("t", 0): 1}
    assert world.target.written == [("id-0-0", 1)]
    assert world.progress.numbers()["dead_letters"] == 0


def test_no_further_record_is_set_aside_while_those_that_wait_for_a_commit_take_too_much_memory():
    world = World(Target(), tolerant=True)
    world.progress.done(Done({}, [Letter(None, b"x" * 2 * LETTER_BYTES_MAX, ())], 0, 0, {}, {}))
    world.lane.offer([(Message(0, b"no JSON"), "id")])
    world.lane.start()
    for _ in range(3_000):
        if not world.lane._waiting:
            break
        threading.Event().wait(0.01)
    world.lane.end()
    world.lane.join(WAIT_S)
    assert world.progress.take()[0] == {}
