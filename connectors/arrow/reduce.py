"""Many changes of a key to one, column by column: what MERGE gets is one source row per key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Ints = npt.NDArray[np.int64]
    Flags = npt.NDArray[np.bool_]

PUT, DELETE = 0, 1
NONE = -1
"""No row, no key: columns marked so keep what the target holds."""


@dataclass(slots=True)
class TableChanges:
    """The changes of one table in one batch, in any order. `key` numbers the keys; `old` is the key that a key change
    came from, `new` the one it goes to (on the delete); `unchanged` says per column which rows did not bring it."""

    op: Ints
    key: Ints
    major: Ints
    minor: Ints
    unchanged: Mapping[str, Flags] = field(default_factory=dict)
    old: Ints | None = None
    new: Ints | None = None


@dataclass(slots=True)
class RowSelection:
    """Rows to build: the row that speaks last for each (position and all plain columns), and where columns that were
    unchanged somewhere come from instead (NONE: kept from the row of key `origin`, which may be the row's own key when
    it came back to that; `origin` NONE: from the row of its own key as it stands)."""

    last: Ints
    take: dict[str, Ints]
    origin: Ints


@dataclass(slots=True)
class ReducedChanges:
    """`upserts` by key, `deletes` as indexes of delete rows, `moved` as rows that are needed under their new key by a
    later batch (`last` NONE: the target's row as it is), with `moved_by` their delete rows; `orphans` counts updates
    with unchanged columns of rows that were deleted before."""

    upserts: RowSelection
    deletes: Ints
    moved: RowSelection
    moved_by: Ints
    orphans: int = 0


@dataclass(slots=True)
class _State:
    """A row as far as this batch knows it: `source` per special column, NONE where row `origin` has it."""

    last: int
    source: dict[str, int]
    origin: int
    came: bool = False
    """By a change of its key: the row of `origin` may have left the table since."""


def reduce(changes: TableChanges) -> ReducedChanges:
    import numpy as np

    order = _order(changes)
    key = changes.key[order]
    count = int(max(changes.key.max(initial=-1), -1 if changes.old is None else changes.old.max(initial=-1))) + 1
    last = np.full(count, NONE, np.int64)
    last[key] = order  # of equal indexes the last one stays
    deleted = np.zeros(count, np.bool_)
    touched = last != NONE
    deleted[touched] = changes.op[last[touched]] == DELETE
    take: dict[str, Ints] = {}
    origin = np.full(count, NONE, np.int64)
    orphans = 0
    moves: list[tuple[int, _State]] = []
    if changes.unchanged:
        orphans = _columns(changes, order, last, deleted, take)
    walked = _walked_keys(changes)
    if walked:
        moves = _walk(changes, order, walked, last, deleted, take, origin)
    kept = np.flatnonzero(touched & ~deleted)
    return ReducedChanges(
        RowSelection(last[kept], {name: source[kept] for name, source in take.items()}, origin[kept]),
        last[np.flatnonzero(touched & deleted)],
        _moved(changes, [state for _, state in moves]),
        np.array([row for row, _ in moves], np.int64),
        orphans,
    )


def fresh(changes: TableChanges, upserts: RowSelection, made: Flags) -> Flags:
    """Returns a mask of the upserts whose key came up with its first change here (`made`), and that take nothing from the
    target."""
    import numpy as np

    order = _order(changes)[::-1]
    first = np.zeros(int(changes.key.max(initial=-1)) + 1, np.int64)
    first[changes.key[order]] = order  # of equal indexes the last one stays
    out = (upserts.last != NONE) & (upserts.origin == NONE)
    for source in upserts.take.values():
        out &= source != NONE
    return np.asarray(out & made[first[changes.key[upserts.last]]], np.bool_)


def _order(changes: TableChanges) -> Ints:
    """Row indexes by position; rows mostly come in order, and looking is cheaper than sorting."""
    import numpy as np

    major, minor = changes.major, changes.minor
    step = major[1:] - major[:-1]
    if bool(((step > 0) | ((step == 0) & (minor[1:] >= minor[:-1]))).all()):
        return np.arange(len(major), dtype=np.int64)
    return np.lexsort((minor, major)).astype(np.int64)


def _columns(changes: TableChanges, order: Ints, last: Ints, deleted: Flags, take: dict[str, Ints]) -> int:
    """Per column the last row that brought it since the key's last delete. Rows after a delete that bring less than
    everything have nothing to build on and are dropped."""
    import numpy as np

    n, count = len(order), len(last)
    key, op = changes.key[order], changes.op[order]
    partial = np.logical_or.reduce(list(changes.unchanged.values()))[order]
    gone = np.full(count, NONE, np.int64)
    gone[key[op == DELETE]] = np.flatnonzero(op == DELETE)
    whole = np.full(count, NONE, np.int64)
    full_rows = (op == PUT) & ~partial
    whole[key[full_rows]] = np.flatnonzero(full_rows)
    orphan_rows = (op == PUT) & partial & (gone[key] != NONE) & (gone[key] < np.arange(n)) & (whole[key] < gone[key])
    orphaned = np.unique(key[orphan_rows])
    last[orphaned] = order[gone[orphaned]]
    deleted[orphaned] = True
    for name, flags in changes.unchanged.items():
        brought = (op == PUT) & ~flags[order]
        found = np.full(count, NONE, np.int64)
        found[key[brought]] = np.flatnonzero(brought)
        take[name] = np.where(found == NONE, NONE, order[found])
    return int(orphan_rows.sum())


def _walked_keys(changes: TableChanges) -> set[int]:
    """Keys that take part in a key change whose old row matters: too rare and too tangled for columns at once."""
    import numpy as np

    keys: set[int] = set()
    if changes.old is not None and changes.unchanged:
        partial = np.logical_or.reduce(list(changes.unchanged.values()))
        copies = (changes.old != NONE) & partial & (changes.op == PUT)
        keys.update(changes.key[copies].tolist(), changes.old[copies].tolist())
    if changes.new is not None:
        arrivals = _arrivals(changes)
        leaving = np.flatnonzero((changes.new != NONE) & (changes.op == DELETE)).tolist()
        keys.update(int(changes.key[row]) for row in leaving if not _has_arrived(changes, row, arrivals))
    return keys


def _walk(
    changes: TableChanges,
    order: Ints,
    walked: set[int],
    last: Ints,
    deleted: Flags,
    take: dict[str, Ints],
    origin: Ints,
) -> list[tuple[int, _State]]:
    """One change after the other for the keys in `walked`; writes their result into the per-key arrays."""
    import numpy as np

    names = list(changes.unchanged)
    states: dict[int, _State | None] = {}
    gone: dict[int, _State] = {}
    moves: list[tuple[int, _State]] = []
    final: dict[int, int] = {}
    for row in order[np.isin(changes.key[order], np.fromiter(walked, np.int64))].tolist():
        key = int(changes.key[row])
        state = states.get(key, _untouched(names, key))
        if changes.op[row] == DELETE:
            if state is not None:
                gone[key] = state
                if changes.new is not None and changes.new[row] != NONE:
                    moves.append((row, state))
            states[key], final[key] = None, row
            continue
        missing = [name for name in names if changes.unchanged[name][row]]
        base, came = state, state is not None and state.came
        if missing and changes.old is not None and changes.old[row] != NONE:
            old = int(changes.old[row])
            base, came = gone.get(old) or states.get(old) or _untouched(names, old), True
        if missing and base is None:
            continue
        source = dict.fromkeys(names, row)
        if base is not None:
            source.update({name: base.source[name] for name in missing})
        kept_back = base is not None and NONE in source.values()
        states[key] = _State(row, source, base.origin if base is not None and kept_back else NONE, came)
        final[key] = row
    _write_back(states, final, last, deleted, take, origin)
    arrivals = _arrivals(changes)
    return [(row, state) for row, state in moves if not _has_arrived(changes, row, arrivals)]


def _write_back(
    states: Mapping[int, _State | None],
    final: Mapping[int, int],
    last: Ints,
    deleted: Flags,
    take: dict[str, Ints],
    origin: Ints,
) -> None:
    for key, row in final.items():
        state = states[key]
        last[key] = row if state is None else state.last
        deleted[key] = state is None
        if state is not None:
            origin[key] = state.origin if state.came else NONE
            for name, source in take.items():
                source[key] = state.source[name]


def _untouched(names: list[str], key: int) -> _State:
    return _State(NONE, dict.fromkeys(names, NONE), key)


def _arrivals(changes: TableChanges) -> dict[tuple[int, int], tuple[int, int]]:
    """The last position at which a row came from one key to another."""
    import numpy as np

    out: dict[tuple[int, int], tuple[int, int]] = {}
    if changes.old is not None:
        for row in np.flatnonzero(changes.old != NONE).tolist():
            pair, at = (int(changes.old[row]), int(changes.key[row])), _position(changes, row)
            out[pair] = max(at, out.get(pair, at))
    return out


def _has_arrived(changes: TableChanges, row: int, arrivals: Mapping[tuple[int, int], tuple[int, int]]) -> bool:
    """Returns whether what leaves in this row arrives in the same batch. It may have gone the same way before."""
    assert changes.new is not None
    at = arrivals.get((int(changes.key[row]), int(changes.new[row])))
    return at is not None and at > _position(changes, row)


def _position(changes: TableChanges, row: int) -> tuple[int, int]:
    return int(changes.major[row]), int(changes.minor[row])


def _moved(changes: TableChanges, states: list[_State]) -> RowSelection:
    import numpy as np

    take: dict[str, Any] = {
        name: np.array([state.source[name] for state in states], np.int64) for name in changes.unchanged
    }
    last = np.array([state.last for state in states], np.int64)
    return RowSelection(last, take, np.array([state.origin if state.came else NONE for state in states], np.int64))
