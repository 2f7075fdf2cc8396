"""The stored position of a task: where the stream resumes, by GTIDs and by a place in a file, and how far the snapshot has come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from cdcworker.connectors.capture.snapshot.progress import SnapshotProgress
from cdcworker.connectors.mysql.errors import POSITION_INVALID
from cdcworker.connectors.mysql.gtid.executed import Gtids, parse_gtids
from cdcworker.connectors.mysql.server.log_files import file_number
from cdcworker.schemas.change import JsonObject
from cdcworker.schemas.errors import CdcError

VERSION: Final = 1
VERSION_PARTS: Final = 2
"""Of positions inside a transaction."""
Product = Literal["mariadb", "mysql"]


class FilePlace(NamedTuple):
    """A place between two events of the log. `made` is when its file was begun, in seconds since 1970: a file of the same name that was
    begun at another time is one of another log."""

    file: str
    position: int
    made: int = 0

    def is_behind(self, other: FilePlace) -> bool:
        """Returns whether this place of a server's log comes after another one of it."""
        return (file_number(self.file), self.position) > (file_number(other.file), other.position)


NO_PLACE: Final = FilePlace("", 0)
"""Of a server from which nothing was read yet."""


class TransactionPart(NamedTuple):
    """A transaction that was handed on in part: its GTID, where it has one, its number, and how many of its rows."""

    gtid: str
    number: int
    rows: int


@dataclass(slots=True)
class StoredPosition:
    """Everything up to `gtids`, which is up to `place` on the server `server`, is in Kafka or of no concern.

    `number` is that of the last transaction (`CommitNumbers`). `server` is what tells servers apart, empty where the server does not
    say it. A log without GTIDs has an empty set.
    """

    product: Product
    server: str
    gtids: str
    place: FilePlace
    number: int
    has_gtids: bool = True
    ts_ms: int = 0
    part: TransactionPart | None = None
    orders: dict[str, int] | None = None
    """How many events of that transaction were handed on, by data collection, where they are numbered."""
    snapshot: JsonObject | None = None
    quarantine: JsonObject | None = None
    """Tables that are held back, by name."""
    shapes: JsonObject | None = None
    """Fingerprints of the shapes in force, where the policy for schema changes needs them."""

    @property
    def is_mariadb(self) -> bool:
        return self.product == "mariadb"

    @property
    def last_number(self) -> int:
        """The number of the last transaction of which anything was handed on."""
        return self.part.number if self.part else self.number

    def executed(self) -> Gtids:
        """The transactions that were handed on."""
        return parse_gtids(self.gtids, is_mariadb=self.is_mariadb)

    def to_json(self) -> JsonObject:
        part: JsonObject = {"part": list(self.part)} if self.part else {}
        if self.part and self.orders:
            part["orders"] = self.orders
        return {
            "v": VERSION_PARTS if self.part else VERSION,
            "product": self.product,
            "server": self.server,
            "gtids": self.gtids if self.has_gtids else None,
            "file": self.place.file,
            "pos": self.place.position,
            "made": self.place.made,
            "number": self.number,
            "ts_ms": self.ts_ms,
            **part,
            "snapshot": self.snapshot,
            **({"quarantine": self.quarantine} if self.quarantine else {}),
            **({"shapes": self.shapes} if self.shapes else {}),
        }

    @classmethod
    def from_json(cls, value: JsonObject) -> StoredPosition:
        """Unknown fields are left alone; a missing or wrong one is CdcError `mysql.position_invalid`."""
        if value.get("v") not in (VERSION, VERSION_PARTS):
            raise CdcError(POSITION_INVALID, "the stored position is of another version")
        try:
            found = cls._read(value)
            found.executed()
        except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, CdcError) as exc:
            raise CdcError(POSITION_INVALID, "the stored position lacks a field or holds a wrong one") from exc
        return found

    @classmethod
    def _read(cls, value: JsonObject) -> StoredPosition:
        gtids, snapshot = value["gtids"], value.get("snapshot")
        return cls(
            product=_product(value["product"]),
            server=str(value.get("server") or ""),
            gtids="" if gtids is None else str(gtids),
            has_gtids=gtids is not None,
            place=FilePlace(str(value["file"]), _number(value["pos"]), _number(value.get("made") or 0)),
            number=_number(value["number"]),
            ts_ms=int(value.get("ts_ms") or 0),
            part=_part(value.get("part")),
            orders={str(name): int(count) for name, count in (value.get("orders") or {}).items()} or None,
            snapshot=dict(snapshot) if snapshot is not None else None,
            quarantine=dict(value.get("quarantine") or {}) or None,
            shapes=dict(value.get("shapes") or {}) or None,
        )


def _product(value: Any) -> Product:
    if value == "mariadb":
        return "mariadb"
    if value == "mysql":
        return "mysql"
    raise ValueError("product")


def _number(value: Any) -> int:
    if not isinstance(value, int) or value < 0:
        raise ValueError("number")
    return value


def _part(value: Any) -> TransactionPart | None:
    if value is None:
        return None
    gtid, number, rows = value
    if not isinstance(gtid, str) or _number(number) == 0 or _number(rows) == 0:
        raise ValueError("part")
    return TransactionPart(gtid, number, rows)


def progress_of(snapshot: JsonObject) -> SnapshotProgress:
    """Returns a position's snapshot; CdcError `mysql.position_invalid` where it cannot be read."""
    try:
        return SnapshotProgress.from_json(snapshot)
    except ValueError as exc:
        raise CdcError(POSITION_INVALID, str(exc)) from exc
