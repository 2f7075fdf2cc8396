"""When a key may be reported while the source moves on.

A round reads the key in the source, and then in a snapshot of the warehouse that holds everything up to there. The next
round's read of the source shows whether the row stood still around the read of the warehouse. Equal at one round:
equal. Different with the row unmoved on both sides for two rounds: reported; one is not enough where a row came and
went between two reads of the source, or where its commit was on its way to be seen. What moves is tried again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from cdcworker.connectors.verify.databases import KeyState

Kind = Literal["missing", "extra", "different", "duplicate"]
STILL_ROUNDS: Final = 2


@dataclass(slots=True)
class SuspectKey:
    """A key whose rows differed; `still` counts the rounds through which neither side moved."""

    source: KeyState | None
    target: KeyState | None
    still: int = 0

    @property
    def is_equal(self) -> bool:
        """Absent on both sides is equal too."""
        return same(self.source, self.target)

    @property
    def kind(self) -> Kind:
        if self.target is None:
            return "missing"
        if self.source is None:
            return "extra"
        return "duplicate" if self.target.rows > self.source.rows else "different"

    def see_source(self, row: KeyState | None) -> bool:
        """The source's row as it is now; whether the key is to be reported."""
        unmoved = version(row) == version(self.source)
        self.still = self.still + 1 if unmoved else 0
        self.source = row
        return self.still >= STILL_ROUNDS

    def see_target(self, row: KeyState | None) -> bool:
        """The warehouse's row behind that; whether the key turns out to be equal."""
        if version(row) != version(self.target):
            self.still = 0
        self.target = row
        return self.is_equal


def same(left: KeyState | None, right: KeyState | None) -> bool:
    return left is right if left is None or right is None else left.content == right.content


def version(row: KeyState | None) -> tuple[int, int, str] | None:
    return None if row is None else (row.rows, row.hash, row.version)


def differing_columns(source: KeyState | None, target: KeyState | None, names: tuple[str, ...]) -> tuple[str, ...]:
    """Returns which columns of a row that both have are not the same."""
    if source is None or target is None or len(source.columns) != len(target.columns):
        return ()
    pairs = zip(names, source.columns, target.columns, strict=False)
    return tuple(name for name, left, right in pairs if left != right)
