"""What becomes of a table's columns where the source's are others now. A column is known by the source's identity of it, not
by its name: names are dropped, taken over and exchanged."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from cdcworker.connectors.sink_errors import SCHEMA_REFUSED
from cdcworker.schemas.errors import CdcError

NAME_BYTES_MAX: Final = 63
"""What PostgreSQL keeps of a name; the other targets take longer ones."""
Where = Mapping[str, str | int]
Renames = tuple[tuple[str, str], ...]
"""Old and new names."""


class TargetTableColumn(NamedTuple):
    """`id` None: nobody has said which column of the source it is. In a target that others add columns to it may be theirs."""

    name: str
    id: int | None = None


@dataclass(frozen=True, slots=True)
class ColumnNaming:
    """`names`: of every column that is there, the name that it has then. `dropped`: those among them that the source has
    no more and that make room for another one. `added`: names of columns that are new. `gone`: all that the source is known to
    have had and has no more; nobody else's are among them, and none where the source does not say which is which."""

    names: Mapping[str, str]
    dropped: tuple[str, ...]
    added: tuple[str, ...]
    gone: tuple[str, ...] = ()

    @property
    def steps(self) -> tuple[Renames, Renames]:
        return steps(self.names, self.added)


def plan(
    have: Sequence[TargetTableColumn], want: Sequence[TargetTableColumn], key: Collection[str], where: Where
) -> ColumnNaming:
    """Names and identities are unique in both. CdcError SCHEMA_REFUSED where another one would become a column of the
    `key`, or the name of a renamed column is taken by one that is not known to be the source's."""
    found = _found(have, want)
    names = {column.name: column.name for column in have}
    names.update({old: column.name for old, column in found.items()})
    there = set(found.values())
    added = tuple(column.name for column in want if column not in there)
    wanted = {column.name for column in want}
    taken, dropped = wanted | set(names), []
    for column in have:
        if column.name in found or column.name not in wanted:
            continue
        if column.id is None:
            text = "a column was renamed to the name of one that is not the source's"
            raise CdcError(SCHEMA_REFUSED, text, where={**where, "column": column.name})
        names[column.name] = dropped_name(column.name, column.id, taken)
        taken.add(names[column.name])
        dropped.append(column.name)
    for old, new in names.items():
        if old != new and (old in key or new in key):
            raise CdcError(SCHEMA_REFUSED, "the key of the table changed", where={**where, "column": old})
    told = any(column.id for column in want)
    gone = (column.name for column in have if column.id and column.name not in found and column.name not in key)
    return ColumnNaming(names, tuple(dropped), added, tuple(gone) if told else ())


def not_renamed(
    known: Mapping[int, str], have: Sequence[TargetTableColumn], want: Sequence[TargetTableColumn], where: Where
) -> None:
    """CdcError SCHEMA_REFUSED where a column that is wanted is gone from the target under its `known` name, while one that is
    nobody's may be it: somebody renamed it. To add it anew would split its values over both. With no such column it was
    dropped."""
    names = {column.name for column in have}
    wanted = {column.name for column in want}
    free = {column.name for column in have if column.id is None}
    for column in want:
        name = known.get(column.id or 0)
        if name is None or name in names or column.name in free or not free - wanted:
            continue
        text = "the column is not in the table under the name that the sink knows: call it so again, or add it"
        raise CdcError(SCHEMA_REFUSED, text, where={**where, "column": name})


def _found(have: Sequence[TargetTableColumn], want: Sequence[TargetTableColumn]) -> dict[str, TargetTableColumn]:
    """Returns by the name of each existing column the wanted one that it is: by identity, else, where one of the two
    has none, by name."""
    by_id = {column.id: column.name for column in have if column.id is not None}
    by_name = {column.name: column for column in have}
    found = {by_id[column.id]: column for column in want if column.id in by_id}
    for column in want:
        there = by_name.get(column.name)
        if there is None or there.name in found or column.id in by_id:
            continue
        if there.id is None or column.id is None:
            found[there.name] = column
    return found


def steps(names: Mapping[str, str], added: Iterable[str] = ()) -> tuple[Renames, Renames]:
    """The renames in two steps: nobody has any of a step's new names when it begins, so whoever looks while it is made
    sees which are done. The first makes room, by way of names for the time being where columns exchange theirs."""
    needed = {new for old, new in names.items() if old != new} | set(added)
    taken = {*names, *names.values(), *added}
    first, second = [], []
    for old, new in names.items():
        if old == new:
            continue
        if old not in needed:
            second.append((old, new))
        elif new not in names:
            first.append((old, new))
        else:
            between = _free(f"_cdc_moving_{len(first)}", taken)
            taken.add(between)
            first.append((old, between))
            second.append((between, new))
    return tuple(first), tuple(second)


def dropped_name(name: str, id: int, taken: Collection[str]) -> str:
    """Returns the new name of a column that the source dropped and whose name another one has now: `<name>_dropped_<id>`,
    shortened at its front part."""
    tail = f"_dropped_{id}"
    room = NAME_BYTES_MAX - len(tail)
    while True:
        found = name.encode()[:room].decode(errors="ignore") + tail
        if found not in taken:
            return found
        # Of long names the beginning may be the same; of a table, names like these may be the source's own.
        tail, room = f"{tail}_", room - 1


def _free(name: str, taken: Collection[str]) -> str:
    while name in taken:
        name += "_"
    return name
