"""Random changes of a source's columns, and what its rows are after them."""

from __future__ import annotations

from typing import Any

from cdcworker.connectors.warehouses.column_changes import TargetTableColumn
from cdcworker.schemas.change import NO_DEFAULT, Table
from hypothesis import strategies as st

from .. import change_streams
from . import warehouses as contract

NAMES = ("a", "b", "c", "b_dropped_3", "ü" * 30)
changes = st.one_of(
    st.tuples(st.just("drop"), st.integers(0, 9)),
    st.tuples(st.just("add"), st.sampled_from(NAMES), st.booleans()),
    st.tuples(st.just("rename"), st.integers(0, 9), st.sampled_from(NAMES)),
    st.tuples(st.just("swap"), st.integers(0, 9), st.integers(0, 9)),
    st.tuples(st.just("put"), st.integers(1, 4)),
)


class Source:
    """Columns by their identities, and rows; a change that cannot be made is none."""

    def __init__(self) -> None:
        self.named: dict[int, str] = {2: "a", 3: "b"}
        self.defaults: dict[int, str] = {}
        self.rows: dict[int, dict[int, str | None]] = {}
        self._next = 4
        self._puts = 0

    @property
    def columns(self) -> list[TargetTableColumn]:
        return [TargetTableColumn("id", 1), *(TargetTableColumn(name, id) for id, name in self.named.items())]

    @property
    def table(self) -> Table:
        made = [
            change_streams.column(name, "string", "text", column_id=id, default=self.defaults.get(id, NO_DEFAULT))
            for id, name in self.named.items()
        ]
        return change_streams.table(change_streams.column("id", "long", "bigint", False, column_id=1), *made)

    def apply(self, change: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """The row that was written, if the change is one."""
        kind, *more = change
        ids = list(self.named)
        if kind == "put":
            self._puts += 1
            row = {id: f"{id}-{self._puts}" for id in ids}
            self.rows[more[0]] = dict(row)
            return (more[0], *row.values())
        if kind == "add":
            self._add(*more)
        elif ids and kind == "drop":
            self._drop(ids[more[0] % len(ids)])
        elif ids and kind == "rename" and more[1] not in self.named.values():
            self.named[ids[more[0] % len(ids)]] = more[1]
        elif ids and kind == "swap":
            one, other = (ids[at % len(ids)] for at in more)
            self.named[one], self.named[other] = self.named[other], self.named[one]
        return None

    def _add(self, name: str, default: bool) -> None:
        if name in self.named.values():
            return
        id, self._next = self._next, self._next + 1
        self.named[id] = name
        if default:
            self.defaults[id] = f"default-{id}"
        for row in self.rows.values():
            row[id] = self.defaults.get(id)

    def _drop(self, id: int) -> None:
        del self.named[id]
        for row in self.rows.values():
            row.pop(id, None)

    def found(self) -> list[tuple[Any, ...]]:
        """As a reader sees it: the columns in the order of their names."""
        order = sorted(self.named, key=lambda id: self.named[id])
        return sorted((key, *(row[id] for id in order)) for key, row in self.rows.items())


def play(script: list[tuple[Any, ...]], writer: Any, cuts: list[int]) -> None:
    """The warehouse has the source's rows, in the columns that it has in the end."""
    stream, source = change_streams.Stream(1), Source()
    for change in [*script, ("put", 9)]:
        row = source.apply(change)
        if row is not None:
            stream.insert(source.table, row)
    contract.run(stream, writer, cuts)
    assert contract.rows(writer, "id", *sorted(source.named.values())) == source.found()
