"""Positions by their meaning: the log's beginning, its end, a time, a GTID, a place in a file, or behind the next transaction."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from cdcworker.connectors.api.source import EARLIEST, MEANINGS, NOW, SKIP, TranslatedOffset
from cdcworker.connectors.capture.moved_positions import TIME_FORM, TransactionSum, changes_text, time_of
from cdcworker.connectors.mysql import errors as e
from cdcworker.connectors.mysql.config.settings import MySqlSettings
from cdcworker.connectors.mysql.gtid.executed import ExecutedGtids, Gtids, OwnGtid, contains, holds, parse_gtids, union
from cdcworker.connectors.mysql.gtid.mariadb import MariaDbPosition
from cdcworker.connectors.mysql.server.facts import ServerFacts, read_facts
from cdcworker.connectors.mysql.server.log_events import FileHead, head_of
from cdcworker.connectors.mysql.server.log_files import file_number, log_end, log_files
from cdcworker.connectors.mysql.server.steady_connection import SteadyConnection, translated
from cdcworker.connectors.mysql.source.log_transactions import LoggedTransaction, transactions_from
from cdcworker.connectors.mysql.source.places import WANTED
from cdcworker.connectors.mysql.source.position import NO_PLACE, FilePlace, StoredPosition, progress_of
from cdcworker.connectors.mysql.transport.commands import FIRST_POSITION
from cdcworker.schemas.errors import CdcError, Where, declare

NOT_THERE: Final = declare(
    "mysql.place_not_there",
    "config",
    "The server's log does not lead to this place",
    "Take `earliest`, `now`, or a place between two transactions that the log still has; what lies before `earliest` can only be read"
    " again by a snapshot.",
)
SNAPSHOT_RUNS: Final = declare(
    "mysql.place_in_snapshot",
    "config",
    "A snapshot that has not ended keeps the place in the log",
    "Let the connector run until its snapshots have ended, or cancel them, and stop it again.",
)
COUNT_S_MAX: Final = 15.0


@dataclass(frozen=True, slots=True)
class LogPoint:
    """A place between two transactions of the log, and the transactions before it."""

    gtids: Gtids
    place: FilePlace

    def is_behind(self, one: LoggedTransaction) -> bool:
        """Returns whether a transaction lies before the point."""
        if one.own is None:
            return self.place.is_behind(FilePlace(*one.begin))
        return holds(self.gtids, one.own)


class LogOfServer:
    """The files of a server's log, as they are at the first look, and the transactions in them."""

    def __init__(self, settings: MySqlSettings, catalog: SteadyConnection, facts: ServerFacts) -> None:
        self._settings, self._catalog, self.facts = settings, catalog, facts
        self._heads: dict[int, FileHead] = {}

    @cached_property
    def sizes(self) -> Mapping[str, int]:
        return log_files(self._catalog.get())

    @cached_property
    def files(self) -> Sequence[str]:
        if not self.sizes:
            raise CdcError(e.LOG_OFF, "the server has no binary log")
        return list(self.sizes)

    @cached_property
    def removed(self) -> Gtids:
        """MySQL: transactions that are in no file any more, or never were; a file need not say so."""
        is_told = self.facts.has_gtids and not self.facts.is_mariadb
        text = self._catalog.ask("select @@global.gtid_purged")[0][0] if is_told else ""
        return parse_gtids(str(text or ""), is_mariadb=self.facts.is_mariadb)

    def head(self, index: int) -> FileHead:
        if index not in self._heads:
            found = head_of(self._settings, self.files[index])
            self._heads[index] = FileHead(found.made, union(found.before, self.removed))
        return self._heads[index]

    def beginning(self, index: int) -> LogPoint:
        """The point before the first transaction of a file."""
        head = self.head(index)
        return LogPoint(head.before, FilePlace(self.files[index], FIRST_POSITION, head.made))

    def end(self) -> LogPoint:
        found = log_end(self._catalog.get(), self.facts)
        return LogPoint(found.gtids, self._dated(FilePlace(found.file, found.position)))

    def walk(self, index: int) -> LogWalk:
        """Begins to go through the log with a file."""
        start = self.beginning(index)
        return LogWalk(transactions_from(self._settings, self.files[index]), start, self._dated)

    def last_file(self, fits: Callable[[FileHead], bool]) -> int | None:
        """Returns the last file whose beginning fits, where it fits for all files before it; None where it fits for none."""
        low, high = 0, len(self.files)
        while low < high:
            middle = (low + high) // 2
            if fits(self.head(middle)):
                low = middle + 1
            else:
                high = middle
        return low - 1 if low else None

    def _dated(self, place: FilePlace) -> FilePlace:
        """A file that was begun after the first look has no time that is known."""
        known = place.file in self.sizes
        return place._replace(made=self.head(self.files.index(place.file)).made) if known else place


class LogWalk:
    """Goes through the log, transaction by transaction; between two of them it knows the point."""

    def __init__(
        self, found: Iterator[LoggedTransaction], start: LogPoint, dated: Callable[[FilePlace], FilePlace]
    ) -> None:
        self._found, self._dated = found, dated
        self._executed = ExecutedGtids(start.gtids)
        self._place = start.place

    def __iter__(self) -> Iterator[LoggedTransaction]:
        for one in self._found:
            yield one
            self.go_past(one)

    @property
    def place(self) -> FilePlace:
        """Before the transaction that was given last, behind all others."""
        return self._place

    def point(self) -> LogPoint:
        return LogPoint(self._executed.gtids, self._dated(self._place))

    def go_past(self, one: LoggedTransaction) -> None:
        """The point is behind this transaction from now on; said twice it is the same."""
        if one.own is not None:
            self._executed.add(one.own)
        self._place = FilePlace(*one.end)


def moved(settings: MySqlSettings, stored: StoredPosition, to: str) -> TranslatedOffset:
    """Returns the position for one of `MEANINGS`, a time, or a place as records tell it, and in sentences what is missed and what comes
    again. Raises CdcError; nobody else may read with the connector's server id meanwhile."""
    if stored.snapshot and progress_of(stored.snapshot).loads:
        raise CdcError(SNAPSHOT_RUNS, "the connector has not ended its snapshots")
    with translated(), closing(SteadyConnection(settings)) as catalog:
        facts = read_facts(catalog.get())
        if facts.is_mariadb is not stored.is_mariadb:
            raise CdcError(
                e.OTHER_SERVER, f"the position is one of {stored.product}, and the server is {facts.product}"
            )
        log = LogOfServer(settings, catalog, facts)
        before = _stored_point(stored, facts)
        point, notes = _behind_the_next(log, before, stored) if to == SKIP else (_found(log, to), [])
        if to != SKIP:
            notes += _notes(log, before, point, stored)
            is_early = to not in MEANINGS and time_of(to) is not None and point == log.beginning(0)
            notes += ["the log holds no transaction of before this time"] if is_early else []
    found = replace(
        stored,
        server=facts.identity if point.place.file else "",
        gtids=str(point.gtids),
        has_gtids=facts.has_gtids,
        place=point.place,
        # Whatever comes again comes behind all that was handed on.
        number=stored.last_number,
        ts_ms=0,
        part=None,
        orders=None,
    )
    return TranslatedOffset(found.to_json(), notes)


def _stored_point(stored: StoredPosition, facts: ServerFacts) -> LogPoint | None:
    """Returns where the task stands; None where this server cannot tell."""
    is_same = stored.server == facts.identity
    if not facts.has_gtids or not stored.has_gtids:
        return LogPoint(stored.executed(), stored.place) if is_same and stored.place.file else None
    return LogPoint(stored.executed(), stored.place if is_same else NO_PLACE)


# -- where it is ------------------------------------------------------------------------------------------------------


def _found(log: LogOfServer, to: str) -> LogPoint:
    """Returns the point that a text names. CdcError `mysql.place_not_there`."""
    if to == EARLIEST:
        return log.beginning(0)
    if to == NOW:
        return log.end()
    try:
        time_us = time_of(to)
        if time_us is not None:
            return _at_time(log, time_us // 1_000_000)
        file, _, position = to.strip().rpartition(":")
        if file in log.sizes and position.isdecimal():
            return _at_place(log, file, int(position))
        wanted = parse_gtids(to, is_mariadb=log.facts.is_mariadb)
        if not wanted or not log.facts.has_gtids:
            raise ValueError(WANTED)
    except (ValueError, CdcError) as exc:
        if isinstance(exc, CdcError) and exc.code != e.GTID_INVALID:
            raise
        why = exc if isinstance(exc, ValueError) else f"the log does not have this place; {WANTED}"
        raise CdcError(NOT_THERE, f"{why}; or {', '.join((*MEANINGS, TIME_FORM))}") from None
    own = _only(wanted)
    # A set of several is a position as a server says it.
    return LogPoint(wanted, NO_PLACE) if own is None else _behind(log, own)


def _at_time(log: LogOfServer, time_s: int) -> LogPoint:
    """Returns the point before the first transaction that commits in this second or later, or the log's end."""
    index = log.last_file(lambda head: head.made < time_s)
    walk = log.walk(index or 0)
    for one in walk:
        if one.commit_s >= time_s:
            break
    return walk.point()


def _at_place(log: LogOfServer, file: str, position: int) -> LogPoint:
    walk = log.walk(log.files.index(file))
    for one in walk:
        if one.begin.file != file or position <= one.begin.position:
            break
    if walk.place.file != file or position < walk.place.position or position > log.sizes[file]:
        where: Where = {"file": file, "position": position}
        raise CdcError(NOT_THERE, "the place does not lie between two transactions of the file", where=where)
    return walk.point()


def _behind(log: LogOfServer, wanted: OwnGtid) -> LogPoint:
    """Returns the point behind a transaction, which the server still has."""
    index = log.last_file(lambda head: not holds(head.before, wanted))
    if index is not None:
        walk = log.walk(index)
        for one in walk:
            if one.own == wanted:
                walk.go_past(one)
                return walk.point()
    raise CdcError(NOT_THERE, "the server's log does not have this transaction")


def _only(gtids: Gtids) -> OwnGtid | None:
    """Returns the only transaction of a set; None for a set of several, and for an empty one."""
    if isinstance(gtids, MariaDbPosition):
        return next(iter(gtids.last.values())) if len(gtids.last) == 1 else None
    intervals = [(source, interval) for source, found in gtids.intervals.items() for interval in found]
    is_one = len(intervals) == 1 and intervals[0][1][0] == intervals[0][1][1]
    return (intervals[0][0], intervals[0][1][0]) if is_one else None


def _joined(point: LogPoint, before: LogPoint) -> LogPoint:
    """Returns the point with what lay before another one too: after a failover a log may have transactions in another order."""
    gtids = union(point.gtids, before.gtids)
    return point if gtids == point.gtids else LogPoint(gtids, NO_PLACE)


# -- what that means --------------------------------------------------------------------------------------------------


def _behind_the_next(log: LogOfServer, before: LogPoint | None, stored: StoredPosition) -> tuple[LogPoint, list[str]]:
    """Returns the point behind the first transaction with rows that was not handed on to its end."""
    file = None if before is None else _file_of(log, before)
    if before is None or file is None:
        raise CdcError(NOT_THERE, "the server's log does not have what comes behind the position")
    walk = log.walk(file)
    for one in walk:
        if one.rows and not before.is_behind(one):
            walk.go_past(one)
            rest = [f"{stored.part.rows} of them were handed on already"] if stored.part else []
            return _joined(walk.point(), before), [
                f"transaction {one.name} is missed, with {changes_text(one.rows)}",
                *rest,
            ]
    raise CdcError(NOT_THERE, "no transaction waits behind the position", where={"gtids": str(before.gtids)})


def _notes(log: LogOfServer, before: LogPoint | None, point: LogPoint, stored: StoredPosition) -> list[str]:
    """Says what is missed and what comes again when a task goes on from `before` at another point."""
    if before is None:
        return ["what is missed or comes again cannot be told: the position is one of another server"]
    files = [_file_of(log, before), _file_of(log, point)]
    notes = [] if files[0] is not None else ["what the server has removed from its log is missed"]
    missed, again = TransactionSum("missed"), TransactionSum("handed on again")
    try:
        for one in _in_time(log.walk(min(index or 0 for index in files))):
            was, is_now = before.is_behind(one), point.is_behind(one)
            if one.rows and was is not is_now:
                (again if was else missed).add(one.name, one.rows)
    except CdcError as exc:
        if exc.code != e.LOG_TOO_LONG:
            raise
        notes.append(f"after {COUNT_S_MAX:.0f} s nothing was counted any more: there may be more")
    told = [text for text in (missed.text(), again.text()) if text]
    notes = [*told, *notes] or ["nothing is missed, and nothing comes again"]
    if stored.part and not _holds_part(point, stored):
        notes.append(f"{stored.part.rows} changes of transaction {stored.part.gtid} are handed on again")
    return notes


def _in_time(walk: LogWalk) -> Iterator[LoggedTransaction]:
    """Yields the transactions. CdcError `mysql.log_too_long` after `COUNT_S_MAX`."""
    deadline = time.monotonic() + COUNT_S_MAX
    for one in walk:
        if time.monotonic() > deadline:
            raise CdcError(e.LOG_TOO_LONG, "the transactions are too many to be counted")
        yield one


def _file_of(log: LogOfServer, point: LogPoint) -> int | None:
    """Returns the last file before whose beginning there is nothing but what lies before the point."""
    if log.facts.has_gtids:
        return log.last_file(lambda head: contains(point.gtids, head.before))
    number = file_number(point.place.file)
    return next((index for index, file in enumerate(log.files) if file_number(file) == number), None)


def _holds_part(point: LogPoint, stored: StoredPosition) -> bool:
    if stored.part is None or not stored.part.gtid:
        return False
    own = _only(parse_gtids(stored.part.gtid, is_mariadb=stored.is_mariadb))
    return own is not None and holds(point.gtids, own)
