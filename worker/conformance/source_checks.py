"""Checks of a source in this process: its config, its rows, its positions, and an outside that is away."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from cdcworker.connectors.api.context import TaskContext
from cdcworker.connectors.api.source import SourceTask
from cdcworker.connectors.config.definition import MASK, ConfigDef, ConfigKey
from cdcworker.connectors.kit.connector_classes import KitSource
from cdcworker.schemas.change import JsonObject
from cdcworker.schemas.errors import CODES, CdcError
from cdcworker.worker.conformance.findings import Check, Problem, limited, require
from cdcworker.worker.conformance.harness import GoesAway, KnowsRows, SourceHarness, WritesTexts
from cdcworker.worker.conformance.source_steps import READ_S_MAX, Step, flat, steps

PROMPT_S_MAX: Final = 20.0
"""A close or a poll that takes longer keeps a worker from handing its tasks on."""
PAGE_ITEMS_MAX: Final = 5_000
"""So many rows of one page are held in memory before the first is written."""
BURST: Final = 6_000
STRANGE: Final = (
    "",
    "'\"\\;--<script>%s{}${x}",
    "nul \0 and \x1b[31m",
    "ẞ😀\u202e\ufeff e\u0301",
    "line\r\nline\u2028",
    "null",
    "x" * 200_000,
)
"""Texts that are mishandled easily, and one that is long."""
FOREIGN: Final[JsonObject] = {"v": 99, "offset": "elsewhere"}


def check_config(definition: ConfigDef, config: Mapping[str, str], unfit: Mapping[str, str]) -> None:
    """Raises Problem unless a valid config is taken and an invalid one refused by its code."""
    definition.require_valid(config)
    try:
        definition.parse({**config, **unfit})
    except CdcError as error:
        require(error.code == "config.invalid", f"a config that is not valid is refused with {error.code}")
    else:
        raise Problem(f"a config with {', '.join(sorted(unfit))} that is not valid is taken")


def check_keys(keys: Iterable[ConfigKey]) -> None:
    """Raises Problem unless each key of a plugin says what it is for, and secrets have names by which they are masked even on
    workers that do not have the plugin."""
    for key in keys:
        require(key.doc, f"the key {key.name} does not say what it is for")
        if key.type == "PASSWORD":
            shown = ConfigDef(()).shown(key.name, "probe")
            require(
                shown == MASK,
                f"the secret {key.name} is shown where the plugin is not: end its name in .password or .secret",
            )


class Limits(NamedTuple):
    """How long the checks wait, in seconds."""

    read_s: float = READ_S_MAX
    """For rows that were written."""
    prompt_s: float = PROMPT_S_MAX
    """For a call that has to come back."""
    away_s: float = 3.0
    """How long an outside is away."""


USUAL: Final = Limits()


class SourceChecks:
    """Checks of one connector class with its outside. `config` is whole. Each check writes rows of its own."""

    def __init__(
        self,
        connector_class: Any,
        harness: SourceHarness,
        config: Mapping[str, str],
        *,
        file_roots: Sequence[str] = (),
        begin: Callable[[], JsonObject | None] = lambda: None,
        rows: int = 12,
        limits: Limits = USUAL,
    ) -> None:
        """`begin` returns the position from which everything that is written later follows; `rows` are written by a check. A small
        source has positions by the clock: they are not compared."""
        self._class = connector_class
        self._harness = harness
        self._config = dict(config)
        self._file_roots = tuple(file_roots)
        self._begin = begin
        self._rows = rows
        self._limits = limits

    def all(self) -> Sequence[Check]:
        return (
            Check("a config is judged, and its keys say what they are", self.config),
            Check("rows come once, in their order and with rising positions", self.order),
            Check("a restart from any position loses and repeats nothing", self.restart),
            Check("a position of another source is refused", self.foreign),
            Check("a close is prompt and may come again", self.close),
            Check("texts of any kind arrive as they are", self.texts),
            Check("an outside that is away is waited for, and nothing is lost", self.outage),
            Check("a page is bounded", self.page),
        )

    def task(self, **context: Any) -> SourceTask:
        """Returns the connector's only task, which is not open."""
        connector = self._class(self._config)
        (share,) = connector.split(1)
        given = TaskContext("c", 0, 1, "i", "", file_roots=self._file_roots, **context)
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

    def read(self) -> list[Step]:
        """Returns several steps: rows are written while the task reads."""
        with self.opened(self._start()) as task:
            out: list[Step] = []
            for _ in range(3):
                self._harness.write(self._rows // 3)
                out += steps(task, self._rows // 3, self._limits.read_s)
            return out

    def config(self) -> None:
        check_config(self._class.config_def, self._config, self._harness.unfit)
        if issubclass(self._class, KitSource):
            check_keys(self._class.plugin.keys)

    def order(self) -> None:
        before = self._written()
        found = self.read()
        places = [item[0] for item in flat(found) if isinstance(item[0], tuple)]
        require(all(one < other for one, other in itertools.pairwise(places)), "positions do not rise")
        stored = [json.dumps(position, sort_keys=True) for _, position in found]
        require(len(set(stored)) == len(stored) > 1, "two steps have one position, or there is only one")
        self._compare(len(before), flat(found))

    def restart(self) -> None:
        found = self.read()
        for number in range(len(found) - 1):
            wanted = flat(found[number + 1 :])
            with self.opened(found[number][1]) as task:
                got = flat(steps(task, len(wanted), self._limits.read_s))[: len(wanted)]
            if issubclass(self._class, KitSource):
                wanted, got = ([item[1:] for item in found] for found in (wanted, got))
            require(got == wanted, "rows after a restart are others than without it: the position does not tell all")

    def foreign(self) -> None:
        task = self.task()
        try:
            task.open(FOREIGN)
        except CdcError as error:
            require(
                error.code in CODES and error.kind not in ("transient", "data"), f"refused with {error.code}: retried"
            )
        else:
            raise Problem("a position of another source is taken")
        finally:
            task.close()

    def close(self) -> None:
        for opens in (False, True):
            task = self.task()
            if opens:
                task.open(self._start())
                task.poll()
            began = time.monotonic()
            limited(task.close, "close")
            limited(task.close, "a second close")
            require(time.monotonic() - began < PROMPT_S_MAX, "close takes too long")

    def texts(self) -> None:
        if not isinstance(self._harness, WritesTexts):
            return
        for text in STRANGE:
            with self.opened(self._start()) as task:
                self._harness.write_text(text)
                (row, *_) = flat(steps(task, 1, self._limits.read_s))
                require(text in (row[3] or ()), f"a text of {len(text)} characters is not what was written")

    def outage(self) -> None:
        harness = self._harness
        if not isinstance(harness, GoesAway):
            return
        before = len(self._written())
        with self.opened(self._start()) as task:
            harness.write(2)
            found = steps(task, 2, self._limits.read_s)
            harness.stop()
            try:
                harness.write(2)
                self._poll_while_away(task, found)
            finally:
                harness.start()
        with self.opened(found[-1][1]) as task:
            found += steps(task, 2, self._limits.read_s)
        self._compare(before, flat(found))

    def _poll_while_away(self, task: SourceTask, found: list[Step]) -> None:
        deadline = time.monotonic() + self._limits.away_s
        while time.monotonic() < deadline:
            try:
                batch = limited(task.poll, "a read of an outside that is away", self._limits.prompt_s)
            except CdcError as error:
                require(error.kind == "transient", f"an outside that is away halts the task: {error}")
                return
            require(not batch.changes, "rows come of an outside that is away")
            if batch.position is not None:
                found.append(([], json.loads(json.dumps(batch.position))))

    def page(self) -> None:
        with self.opened(self._start()) as task:
            self._harness.write(BURST)
            count, deadline = 0, time.monotonic() + self._limits.read_s
            while count < BURST:
                require(time.monotonic() < deadline, f"{count} of {BURST} rows were handed on")
                batch = limited(task.poll, "a read")
                size = len(batch.changes) + len(batch.records)
                require(
                    size <= PAGE_ITEMS_MAX, f"a page has {size} rows; at most {PAGE_ITEMS_MAX} fit into memory for sure"
                )
                count += size

    def _start(self) -> JsonObject | None:
        """Returns the position behind everything that is there: checks do not read each other's rows."""
        position = self._begin()
        known = len(self._written())
        if position is not None or not known:
            return position
        with self.opened() as task:
            return steps(task, known, self._limits.read_s)[-1][1]

    def _written(self) -> Sequence[tuple[str, Mapping[str, Any]]]:
        return self._harness.rows() if isinstance(self._harness, KnowsRows) else ()

    def _compare(self, first: int, found: Sequence[Any]) -> None:
        """Compares what was handed on with what the outside knows of."""
        wanted = self._written()[first:]
        if not wanted:
            return
        require(len(found) == len(wanted), f"{len(found)} rows came, {len(wanted)} were written")
        for (position, path, _, after), (table, row) in zip(found, wanted, strict=True):
            del position
            require(path[-1] == table, "a row is of another table")
            require(
                after is not None and all(value in after for value in row.values()), "a row is not what was written"
            )
