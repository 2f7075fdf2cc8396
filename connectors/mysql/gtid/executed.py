"""The transactions that a stream has passed: a set to which each one that ends is added."""

from __future__ import annotations

from cdcworker.connectors.mysql.gtid.mariadb import MariaDbGtid, MariaDbPosition
from cdcworker.connectors.mysql.gtid.mysql import GtidSet, Source

Gtids = MariaDbPosition | GtidSet
OwnGtid = MariaDbGtid | tuple[Source, int]
"""One transaction's GTID, as its server has it."""
ADDED_MAX = 10_000
"""Transactions that are kept before they are put together with the set. # INV-10"""


def parse_gtids(text: str, *, is_mariadb: bool) -> Gtids:
    """Reads the text that either server writes. Raises CdcError."""
    return MariaDbPosition.parse(text) if is_mariadb else GtidSet.parse(text)


def contains(one: Gtids, other: Gtids) -> bool:
    """Returns whether the first holds every transaction of the other; sets of two products hold nothing of each other."""
    if isinstance(one, MariaDbPosition):
        return isinstance(other, MariaDbPosition) and one.contains(other)
    return isinstance(other, GtidSet) and one.contains(other)


def holds(gtids: Gtids, own: OwnGtid) -> bool:
    """Returns whether one transaction is among these."""
    if isinstance(own, MariaDbGtid):
        return isinstance(gtids, MariaDbPosition) and gtids.holds(own)
    return isinstance(gtids, GtidSet) and gtids.holds(*own)


def union(one: Gtids, other: Gtids) -> Gtids:
    """Returns the transactions of both, which are of one product."""
    if isinstance(one, MariaDbPosition):
        return one.union(other) if isinstance(other, MariaDbPosition) else one
    return one.union(other) if isinstance(other, GtidSet) else one


class ExecutedGtids:
    """Putting sets together costs as much as they have parts, so it is done when somebody asks."""

    def __init__(self, gtids: Gtids) -> None:
        self._gtids = gtids
        self._added: list[MariaDbGtid | tuple[Source, int, int]] = []

    def add(self, own: OwnGtid) -> None:
        """A transaction has been read to its end."""
        self._add(own if isinstance(own, MariaDbGtid) else (*own, own[1]))

    def add_run(self, source: Source, first: int, last: int) -> None:
        """The transactions of a source from one number to another have been read to their ends."""
        self._add((source, first, last))

    def _add(self, added: MariaDbGtid | tuple[Source, int, int]) -> None:
        self._added.append(added)
        if len(self._added) >= ADDED_MAX:
            self._put_together()

    @property
    def gtids(self) -> Gtids:
        """All transactions up to here."""
        if self._added:
            self._put_together()
        return self._gtids

    def _put_together(self) -> None:
        added, self._added = self._added, []
        if isinstance(self._gtids, MariaDbPosition):
            self._gtids = self._gtids.union(MariaDbPosition.of(own for own in added if isinstance(own, MariaDbGtid)))
            return
        for source, first, last in _runs([own for own in added if not isinstance(own, MariaDbGtid)]):
            self._gtids = self._gtids.union(GtidSet.of(source, first, last))


def _runs(added: list[tuple[Source, int, int]]) -> list[tuple[Source, int, int]]:
    """Returns the numbers as runs of ones that follow each other."""
    out: list[tuple[Source, int, int]] = []
    for source, first, last in sorted(added):
        if out and out[-1][0] == source and first <= out[-1][2] + 1:
            out[-1] = source, out[-1][1], max(last, out[-1][2])
        else:
            out.append((source, first, last))
    return out
