"""What every source task keeps: one suite over each of them. A test module gives the fixture `source`, a `SourceUnderTest`."""

from __future__ import annotations

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
from cdcworker.connectors.registry.names import lookup
from cdcworker.schemas.change import JsonObject
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.conformance.source_checks import FOREIGN, PROMPT_S_MAX, SourceChecks
from cdcworker.worker.conformance.source_steps import Step, flat, steps


class SourceUnderTest(ABC):
    """One source and its outside. `config` is valid, `unfit` are settings that make it invalid, `foreign` a stored position
    of another source."""

    config: dict[str, str]
    unfit: dict[str, str]
    foreign: ClassVar[JsonObject] = FOREIGN
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


class SourceContract:
    ROWS = 12

    def checks(self, source: SourceUnderTest) -> SourceChecks:
        return SourceChecks(
            type(source.connector()), source, source.config,
            file_roots=source.file_roots, begin=source.begin, rows=self.ROWS,
        )  # fmt: skip

    def read(self, source: SourceUnderTest) -> list[Step]:
        """Several steps: rows are written while the task reads."""
        return self.checks(source).read()

    def test_positions_rise_and_are_unique(self, source):
        self.checks(source).order()

    def test_a_restart_from_any_stored_position_loses_and_repeats_nothing(self, source):
        self.checks(source).restart()

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
        self.checks(source).close()

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
        self.checks(source).config()

    def test_a_position_of_another_source_is_refused(self, source):
        self.checks(source).foreign()

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
