"""MariaDB's GTIDs, and the position that the last one of each domain is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from cdcworker.connectors.mysql.errors import GTID_INVALID
from cdcworker.schemas.errors import CdcError

SEQUENCE_MAX: Final = (1 << 64) - 1
ID_MAX: Final = (1 << 32) - 1


class MariaDbGtid(NamedTuple):
    """One transaction. Numbers rise within a domain, whichever server writes there."""

    domain: int
    server: int
    sequence: int

    def __str__(self) -> str:
        return f"{self.domain}-{self.server}-{self.sequence}"


@dataclass(frozen=True, slots=True)
class MariaDbPosition:
    """The last transaction of each domain; it stands for all transactions of the domain up to it."""

    last: Mapping[int, MariaDbGtid] = field(default_factory=dict)

    @classmethod
    def of(cls, gtids: Iterable[MariaDbGtid]) -> MariaDbPosition:
        """Returns the position of these transactions. Of several of a domain the one with the highest number counts."""
        last: dict[int, MariaDbGtid] = {}
        for gtid in sorted(gtids):
            known = last.get(gtid.domain)
            if known is None or gtid.sequence >= known.sequence:
                last[gtid.domain] = gtid
        return cls(last)

    @classmethod
    def parse(cls, text: str) -> MariaDbPosition:
        """Reads `0-1-100,1-2-50`, as in gtid_slave_pos or gtid_binlog_state. Raises CdcError."""
        return cls.of(gtids_of(text))

    def __bool__(self) -> bool:
        return bool(self.last)

    def __str__(self) -> str:
        return ",".join(str(self.last[domain]) for domain in sorted(self.last))

    def holds(self, gtid: MariaDbGtid) -> bool:
        """Tells whether a transaction comes at or before the position, by its number."""
        known = self.last.get(gtid.domain)
        return known is not None and gtid.sequence <= known.sequence

    def contains(self, other: MariaDbPosition) -> bool:
        """Tells whether this position is at or past the other one in each of its domains."""
        return all(map(self.holds, other.last.values()))

    def union(self, other: MariaDbPosition) -> MariaDbPosition:
        """Returns the further position of each domain."""
        return self.of((*self.last.values(), *other.last.values()))

    def subtract(self, other: MariaDbPosition) -> MariaDbPosition:
        """Returns this position in the domains in which it is past the other one."""
        return self.of(gtid for gtid in self.last.values() if not other.holds(gtid))


def gtids_of(text: str) -> list[MariaDbGtid]:
    """Reads a list, in which gtid_binlog_state has one of each server in each domain. Raises CdcError."""
    return [_parse(part.strip()) for part in text.split(",") if part.strip()]


def _parse(text: str) -> MariaDbGtid:
    parts = text.split("-")
    if len(parts) != 3 or not all(part.isascii() and part.isdecimal() and len(part) <= 20 for part in parts):
        raise _invalid()
    domain, server, sequence = map(int, parts)
    if domain > ID_MAX or server > ID_MAX or sequence > SEQUENCE_MAX:
        raise _invalid()
    return MariaDbGtid(domain, server, sequence)


def _invalid() -> CdcError:
    return CdcError(GTID_INVALID, "the text is not a list of GTIDs of MariaDB")
