"""A start whose clients look for a leader that is not there: they are replaced, and reading goes on where it stood."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
from cdcworker.coordinator.kafka import errors as e
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.source import start_reader as source_opening
from cdcworker.worker.source.start_reader import StartReader
from confluent_kafka import OFFSET_BEGINNING, TopicPartition

FIRST, END = 5, 12
"""The log begins behind what was removed from it."""


class Consumer:
    """Reads one record a poll, and none any more before the offset `blind_at`."""

    def __init__(self, blind_at: int | None) -> None:
        self.blind_at, self.at, self.closed = blind_at, -1, False

    def assign(self, places) -> None:
        (place,) = places
        self.at = FIRST if place.offset == OFFSET_BEGINNING else place.offset
        assert self.at >= FIRST, "an offset that is not there is an error"

    def list_topics(self, topic: str, timeout: float) -> None: ...

    def poll(self, timeout_s: float):
        if self.at >= END or (self.blind_at is not None and self.at >= self.blind_at):
            return None
        self.at += 1
        return SimpleNamespace(offset=lambda at=self.at - 1: at, error=lambda: None)

    def consume(self, most: int, timeout_s: float) -> list:
        return []

    def position(self, places) -> list:
        return [SimpleNamespace(offset=-1001)]

    def close(self) -> None:
        self.closed = True


class World:
    """Clients in the order in which they are made, and a clock that goes on by itself."""

    def __init__(self, monkeypatch, *blind_at: int | None) -> None:
        self.consumers = [Consumer(at) for at in blind_at]
        self.admins, self.blind_admins = 0, 0
        made = iter(self.consumers)
        ticks = itertools.count(step=1.0)
        monkeypatch.setattr(source_opening, "make_consumer", lambda _: next(made))
        monkeypatch.setattr(source_opening, "make_admin", lambda *_, **__: self.admin())
        monkeypatch.setattr(source_opening, "reader_config", lambda *_, **__: {})
        monkeypatch.setattr(source_opening, "client_id", lambda *_: "c")
        monkeypatch.setattr(source_opening, "quick", lambda _: {})
        monkeypatch.setattr(source_opening, "list_offsets", self.offsets)
        monkeypatch.setattr(source_opening, "time", SimpleNamespace(monotonic=lambda: next(ticks)))
        topics = SimpleNamespace(offsets="offsets", configs="configs")
        self.reader = StartReader(SimpleNamespace(kafka={}, topics=topics))  # type: ignore[arg-type]
        self.reader._connected.result()

    def admin(self):
        self.admins += 1
        return SimpleNamespace(number=self.admins, list_topics=lambda *_, **__: None)

    def offsets(self, admin, topic, numbers, spec, timeout_s) -> dict[int, int]:
        if admin.number <= self.blind_admins:
            raise CdcError(e.TRANSIENT, "no leaders found")
        return dict.fromkeys(numbers, END)

    def read(self, start: int = 0) -> list[int]:
        place = TopicPartition("configs", 0, start)
        return [message.offset() for message in self.reader._read_until(place, END)]


@pytest.mark.parametrize("blind_at", [(None,), (FIRST, None), (8, None), (FIRST, 8, 8, None)])
def test_a_consumer_that_comes_no_further_is_replaced_where_it_stands(monkeypatch, blind_at):
    world = World(monkeypatch, *blind_at)
    assert world.read() == list(range(FIRST, END))
    assert [one.closed for one in world.consumers] == [True] * (len(blind_at) - 1) + [False]


def test_it_ends_when_none_comes_further(monkeypatch):
    world = World(monkeypatch, *(FIRST for _ in range(10)))
    with pytest.raises(CdcError) as caught:
        world.read()
    assert caught.value.code == e.TIMEOUT
    assert 3 <= sum(one.closed for one in world.consumers) <= source_opening.READ_TIMEOUT_S / source_opening.STALL_S


def test_an_admin_client_that_finds_no_leader_is_replaced(monkeypatch):
    world = World(monkeypatch, None)
    world.blind_admins = 2
    assert world.reader._offset("offsets", 3, None) == END  # type: ignore[arg-type]
    assert world.reader.admin.number == 3  # type: ignore[attr-defined]
    world.blind_admins = 100
    with pytest.raises(CdcError) as caught:
        world.reader._offset("offsets", 3, None)  # type: ignore[arg-type]
    assert caught.value.code == e.TRANSIENT
