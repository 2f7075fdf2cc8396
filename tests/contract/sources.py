"""What every source task keeps: one suite over each of them. A test module gives the fixture `source`, a `SourceUnderTest`."""

from __future__ import annotations

import itertools
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import pytest
from cdcworker.connectors.api.context import TaskContext
from cdcworker.connectors.api.source import (
    ChecksPositions,
    HidesKeys,
    HoldsTables,
    NamesPartitions,
    ShowsPositions,
    SourceTask,
)
from cdcworker.connectors.registry import lookup
from cdcworker.schemas.change import Change, JsonObject
from cdcworker.schemas.errors import CODES, CdcError

READ_S_MAX = 60.0
PROMPT_S_MAX = 20.0
"""A close or a poll that takes longer keeps a worker from handing its tasks on."""
Item = tuple[Any, ...]
Step = tuple[list[Item], JsonObject]
"""What a source handed on up to a position that it can resume from."""


class SourceUnderTest(ABC):
    """One source and its outside. `config` is valid, `unfit` are settings that make it invalid, `foreign` a stored position
    of another source."""

    config: dict[str, str]
    unfit: dict[str, str]
    foreign: ClassVar[JsonObject] = {"v": 99, "offset": "elsewhere"}
    file_roots: tuple[str, ...] = ()

    @abstractmethod
    def write(self, count: int) -> None:
        """Writes so many rows more, each in a transaction of its own; nothing for a source that makes its rows itself."""

    def connector(self) -> Any:
        return lookup(self.config["connector.class"]).load()(self.config)

    def task(self, **context: Any) -> SourceTask:
        connector = self.connector()
        (share,) = connector.split(1)
        given = TaskContext("c", 0, 1, "i", "", file_roots=self.file_roots, **context)
        made: SourceTask = connector.task(share, given)
        return made

    @contextmanager
    def opened(self, position: JsonObject | None = None) -> Iterator[SourceTask]:
        task = self.task()
        try:
            task.open(position)
            yield task
        finally:
            task.close()

    def begin(self) -> JsonObject | None:
        """The position from which everything that is written later follows."""
        return None


def steps(task: SourceTask, count: int) -> list[Step]:
    """Polls until `count` items have been handed on up to a position."""
    out: list[Step] = []
    items: list[Item] = []
    deadline = time.monotonic() + READ_S_MAX
    while sum(len(found) for found, _ in out) < count:
        assert time.monotonic() < deadline, f"{sum(len(found) for found, _ in out)} of {count} items were handed on"
        batch = task.poll()
        for change in batch.changes:
            assert isinstance(change, Change), "records are handed on ready only to whom layouts were lent"
            items.append((change.position, change.table.path, change.op, change.after))
        items += [(record.topic, record.key, record.value) for record in batch.records]
        if batch.position is not None:
            if items:
                # As it is stored: nothing that JSON changes may be in it.
                out.append((items, json.loads(json.dumps(batch.position))))
            items = []
    return out


def flat(found: list[Step]) -> list[Item]:
    return [item for items, _ in found for item in items]


class SourceContract:
    ROWS = 12

    def read(self, source: SourceUnderTest) -> list[Step]:
        """Several steps: rows are written while the task reads."""
        with source.opened(source.begin()) as task:
            out: list[Step] = []
            for _ in range(3):
                source.write(self.ROWS // 3)
                out += steps(task, self.ROWS // 3)
            return out

    def test_positions_rise_and_are_unique(self, source):
        found = self.read(source)
        places = [item[0] for item in flat(found) if isinstance(item[0], tuple)]
        assert all(one < other for one, other in itertools.pairwise(places))
        stored = [json.dumps(position, sort_keys=True) for _, position in found]
        assert len(set(stored)) == len(stored) > 1

    def test_a_restart_from_any_stored_position_loses_and_repeats_nothing(self, source):
        found = self.read(source)
        for number in range(len(found) - 1):
            wanted = flat(found[number + 1 :])
            with source.opened(found[number][1]) as task:
                assert flat(steps(task, len(wanted)))[: len(wanted)] == wanted

    def test_an_ack_may_come_late(self, source):
        found = self.read(source)
        with source.opened(found[0][1]) as task:
            wanted = flat(found[1:])
            assert flat(steps(task, len(wanted)))[: len(wanted)] == wanted
            task.ack(found[1][1])
        rest = flat(found[2:])
        with source.opened(found[1][1]) as task:
            assert flat(steps(task, len(rest)))[: len(rest)] == rest

    def test_close_is_prompt_and_may_be_called_again(self, source):
        for opens in (False, True):
            task = source.task()
            if opens:
                position = source.begin()
                source.write(1)
                task.open(position)
                steps(task, 1)
            began = time.monotonic()
            task.close()
            task.close()
            assert time.monotonic() - began < PROMPT_S_MAX

    def test_a_poll_returns_promptly_when_there_is_nothing_or_a_stop(self, source):
        stopping = [False]
        task = source.task(stopping=lambda: stopping[0])
        try:
            task.open(source.begin())
            for stops in (False, True):
                stopping[0] = stops
                began = time.monotonic()
                task.poll()
                assert time.monotonic() - began < PROMPT_S_MAX
        finally:
            task.close()

    def test_a_config_that_is_not_valid_is_refused_by_code(self, source):
        connector_class = type(source.connector())
        connector_class.config_def.parse(source.config)
        with pytest.raises(CdcError) as caught:
            connector_class.config_def.parse({**source.config, **source.unfit})
        assert caught.value.code == "config.invalid"

    def test_a_position_of_another_source_is_refused(self, source):
        task = source.task()
        try:
            with pytest.raises(CdcError) as caught:
                task.open(source.foreign)
        finally:
            task.close()
        assert caught.value.code in CODES
        assert caught.value.kind not in ("transient", "data"), "a retry would not help, nor would a record be skipped"

    def test_abilities_are_what_they_say(self, source):
        connector, found = source.connector(), self.read(source)
        assert 1 <= len(connector.split(1)) <= 1
        if isinstance(connector, ChecksPositions):
            for _, position in found:
                connector.check_position(position)
            with pytest.raises(CdcError):
                connector.check_position(source.foreign)
        if isinstance(connector, HidesKeys):
            for _, position in found:
                hidden = connector.without_keys(position)
                assert hidden.keys() == position.keys()
                assert connector.without_keys(hidden) == hidden
        if isinstance(connector, NamesPartitions):
            assert connector.partition(0) == json.loads(json.dumps(source.connector().partition(0)))
        if isinstance(connector, ShowsPositions):
            assert connector.position_name()
            for commit in (0, 1, (1 << 32) + 1, (1 << 64) - 1):
                assert connector.parse_position(connector.position_text(commit)) == commit
            with pytest.raises(ValueError, match=r"\w"):
                connector.parse_position("no position")
        task = source.task()
        if isinstance(task, HoldsTables):
            assert not task.holds(CdcError("config.invalid", "an error that names no table"))
        task.close()
