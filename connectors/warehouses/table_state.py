"""Manifests of a Parquet table: numbered files, each a whole state of the table with the offsets that it holds. A number is
taken by one writer only, so rows and offsets change in one step and of two writers one notices the other."""

from __future__ import annotations

import base64
import contextlib
import json
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Final

from cdcworker.connectors.api.sink import LedgerAccess, SinkOffsets
from cdcworker.connectors.api.table_batch import SinkBatch
from cdcworker.connectors.sink_errors import (
    FENCED,
    LEDGER_MOVED,
    TARGET_COLLISION,
    TARGET_TWICE,
    TARGET_UNREACHABLE,
    gone,
)
from cdcworker.connectors.warehouses.storage.files import Storage
from cdcworker.schemas.errors import CdcError

if TYPE_CHECKING:
    import pyarrow as pa

FOLDER = "_cdc"
OWN = "_cdcworker"
"""The folder of what belongs to no table."""
KEPT = 5
"""Manifests whose files stay, for readers that have begun with them."""
YOUNG_S = 3600.0
"""A file that no manifest names may belong to one that is being written."""
BESIDE = "beside-"
"""Names of files that somebody writes beside the table's owner begin so."""


@dataclass(frozen=True, slots=True)
class DataFile:
    path: str
    rows: int
    bytes: int
    bucket: int = 0


_STORED_NAMES: Final = {"tombstones": "graves"}
"""Members of the stored JSON that have another name than their field."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """One state of a table. `applied` has per partition the highest position (hex) and the source's time."""

    sink: str
    topic: str
    epoch: tuple[int, int]
    version: int = 0
    offsets: Mapping[str, int] = field(default_factory=dict)
    applied: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    floor: str = ""
    key: tuple[str, ...] = ()
    buckets: int = 1
    schema: str = ""
    files: tuple[DataFile, ...] = ()
    tombstones: str = ""
    """Where the tombstones are, or that there are any; empty: there are none. Stored under the name `graves`."""
    at_ms: int = 0
    redriven: tuple[tuple[int, int], ...] = ()
    """Partition and offset of dead letters whose changes this state has and that may still be kept as letters."""
    topic_id: str = ""
    """What Kafka tells topics of one name apart by, of the topic that the offsets are of; empty: nobody has said it."""

    @property
    def begun(self) -> bool:
        """Returns whether the state has offsets. One whose offsets were reset has none, whatever rows it has."""
        return any(self.offsets.values())

    @property
    def at(self) -> bytes:
        """The highest position that was applied; empty: none."""
        return bytes.fromhex(max((at for at, _ in self.applied.values()), default=""))

    @property
    def arrow(self) -> pa.Schema | None:
        import pyarrow as pa

        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(self.schema))) if self.schema else None

    def is_beside(self, known: Manifest) -> bool:
        """Returns whether this state came after `known` and has the same offsets: only dead letters were applied between
        them."""
        same = (self.sink, self.topic, self.epoch, dict(self.offsets), dict(self.applied))
        theirs = (known.sink, known.topic, known.epoch, dict(known.offsets), dict(known.applied))
        return self.version > known.version and same == theirs

    def next(self, epoch: tuple[int, int]) -> Manifest:
        return replace(self, epoch=epoch, version=self.version + 1, at_ms=time.time_ns() // 1_000_000)

    def altered(self, changes: SinkOffsets | None) -> Manifest:
        """Returns the state with altered offsets; with None it has none."""
        offsets = {} if changes is None else dict(self.offsets)
        for (topic, number), offset in (changes or {}).items():
            if topic == self.topic and offset is not None:
                offsets[str(number)] = offset
            elif topic == self.topic:
                offsets.pop(str(number), None)
        # Behind the offsets are records to be read: what stood there before them, maybe in another topic of that name,
        # says nothing of theirs.
        redriven = tuple((number, at) for number, at in self.redriven if at < offsets.get(str(number), 0))
        # Of which topic they are is known when it is read.
        same = changes is not None and all(topic != self.topic for topic, _ in changes)
        return replace(self, offsets=offsets, redriven=redriven, topic_id=self.topic_id if same else "")

    def text(self) -> str:
        """Returns the state as it is stored: JSON with the members in the order of the fields."""
        members = {_STORED_NAMES.get(name, name): value for name, value in asdict(self).items()}
        return json.dumps(members, separators=(",", ":"))


def advanced(
    state: Manifest, batch: SinkBatch, schema: pa.Schema | None, ids: Mapping[str, str] | None = None
) -> Manifest:
    """Returns the state after a batch; `ids` are the topic ids that are known."""
    ends = {str(number): end for (name, number), (_, end) in batch.offsets.items() if name == state.topic}
    applied = {
        str(number): (max(at.hex(), state.applied.get(str(number), ("", 0))[0]), ts)
        for (name, number), (at, ts) in batch.applied.items()
        if name == state.topic
    }
    return replace(
        state,
        offsets={**state.offsets, **ends},
        applied={**state.applied, **applied},
        schema="" if schema is None else schema_text(schema),
        topic_id=(ids or {}).get(state.topic, state.topic_id),
    )


def schema_text(schema: pa.Schema) -> str:
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def parse(text: str) -> Manifest:
    """Returns a stored state, of this version or another; members that only a newer version knows are left out."""
    names = {_STORED_NAMES.get(part.name, part.name): part.name for part in fields(Manifest)}
    raw: dict[str, Any] = {names[name]: value for name, value in json.loads(text).items() if name in names}
    raw["files"] = tuple(DataFile(**item) for item in raw["files"])
    raw["epoch"], raw["key"] = tuple(raw["epoch"]), tuple(raw["key"])
    raw["redriven"] = tuple((partition, offset) for partition, offset in raw.get("redriven", ()))
    return Manifest(**{**raw, "applied": {name: tuple(pair) for name, pair in raw["applied"].items()}})


class Manifests:
    """The manifests of one table, in its folder."""

    def __init__(self, files: Storage, folder: str) -> None:
        self.files = files
        self.folder = folder
        self._home = f"{folder}/{FOLDER}"

    def at(self, path: str) -> str:
        """Returns where a file of the table is, by its path in the table's folder."""
        return f"{self.folder}/{path}"

    def newest(self) -> Manifest | None:
        # All that were listed are gone when so many have come meanwhile.
        while names := self._names():
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    return self._read(name)
        return None

    def _read(self, name: str) -> Manifest:
        return parse(self.files.read(f"{self._home}/{name}").decode())

    def there(self) -> bool:
        """Folders alone are what a restore has brought so far."""
        return bool(self._names())

    def make(self) -> None:
        """Folders of a new table. Of one that has a state none is made: it would stand where the table is to come back."""
        self.files.make_folder(self._home)

    @contextlib.contextmanager
    def writing(self, state: Manifest) -> Iterator[None]:
        """CdcError TARGET_GONE where the table went away meanwhile."""
        try:
            yield
        except OSError as exc:
            if state.version and not self.there():
                raise gone(state.topic) from exc
            raise

    def _names(self) -> list[str]:
        """The newest first."""
        return sorted(self.files.names(self._home, ".json"), reverse=True)

    def commit(self, manifest: Manifest) -> Manifest:
        """The next state. CdcError when somebody else has made it already, or must not be overtaken."""
        if not manifest.version:
            self.make()
        with self.writing(manifest):
            return self._commit(manifest)

    def _commit(self, manifest: Manifest) -> Manifest:
        made = manifest.next(manifest.epoch)
        newest = next(iter(self._names()), None)
        if newest is None and manifest.version:
            # What the state rests on went away with the folder that was there.
            raise gone(manifest.topic)
        if newest is not None and number_of(newest) >= made.version:
            # The number itself may be free again: old ones are swept.
            raise self._overtaken(manifest)
        try:
            self.files.create(f"{self._home}/{made.version:012d}.json", made.text().encode())
        except FileExistsError as exc:
            raise self._overtaken(manifest) from exc
        return made

    def _overtaken(self, mine: Manifest) -> CdcError:
        found = self.newest()
        where = {"sink": mine.sink, "topic": mine.topic}
        if found is not None and (found.sink, found.topic) != (mine.sink, mine.topic):
            return collision(found, mine.topic)
        if found is not None and found.epoch > mine.epoch:
            return CdcError(FENCED, "a newer task writes this table", where=where)
        if found is not None and self.files.is_late(f"{self._home}/{found.version:012d}.json"):
            return late(where)
        return moved(mine)

    def sweep(self, newest: Manifest, everything: bool = False, versions: Collection[int] = ()) -> None:
        """Remove manifests that are old, but for some `versions`, and files that none of those left names; young unnamed
        ones only when asked to, by a new owner: nobody else may still name them."""
        listed = self.files.files(self._home, "")
        manifests = [file for file in listed if file.name.endswith(".json")]
        kept, gone = [], []
        for file in manifests:
            number = number_of(file.name)
            if newest.version - number < KEPT or number in versions:
                # Whoever writes to the table beside its owner sweeps too.
                with contextlib.suppress(FileNotFoundError):
                    kept.append(self._read(file.name))
            else:
                gone.append(f"{self._home}/{file.name}")
        named = {file.path for manifest in kept for file in manifest.files} | {manifest.tombstones for manifest in kept}
        # Clocks of the storage and of this machine may differ: a file counts as old when both say so.
        now = min([time.time(), *(file.modified for file in manifests if number_of(file.name) == newest.version)])
        found = [(file.name, file) for file in self.files.files(self.folder, ".parquet")]
        found += [(f"{FOLDER}/{file.name}", file) for file in listed if file.name.endswith(".parquet")]
        for path, file in found:
            old, mine = now - file.modified > YOUNG_S, everything and not file.name.startswith(BESIDE)
            if path not in named and (old or mine):
                gone.append(self.at(path))
        self.files.remove(gone)


def number_of(name: str) -> int:
    """Returns the number in the name of a manifest or of a set."""
    return int(name.rpartition("/")[2].removesuffix(".json"))


def late(where: Mapping[str, str | int]) -> CdcError:
    """Returns the error for a write that reached an object store after its writer had given it up: the ledger has changed by it."""
    return CdcError(TARGET_UNREACHABLE, "a write that the object store had not answered has arrived late", where=where)


def moved(state: Manifest) -> CdcError:
    where = {"sink": state.sink, "topic": state.topic}
    return CdcError(LEDGER_MOVED, "another task has written this table meanwhile", where=where)


def collision(found: Manifest, topic: str) -> CdcError:
    where = {"topic": topic, "other": found.topic, "sink": found.sink}
    return CdcError(TARGET_COLLISION, "two topics or sinks write to one table", where=where)


def tables(files: Storage) -> Iterator[str]:
    """Folders of which each may be a table's."""
    for schema in files.folders(""):
        if schema != OWN:
            yield from (f"{schema}/{table}" for table in files.folders(schema))


Table = tuple[Manifests, Manifest]


def of_sink(files: Storage, sink: str) -> Iterator[Table]:
    """Its tables with their newest states, wherever somebody has moved them in the warehouse."""
    for manifests in (Manifests(files, folder) for folder in tables(files)):
        found = manifests.newest()
        if found is not None and found.sink == sink:
            yield manifests, found


def begun(found: Iterable[Table]) -> dict[str, Table]:
    """Returns, by topic, the table that holds its offsets: the sink goes on with it wherever it lies, for it alone has the
    rows from before them. CdcError TARGET_TWICE where there are two."""
    out: dict[str, Table] = {}
    for manifests, state in found:
        other, _ = out.setdefault(state.topic, (manifests, state)) if state.begun else (manifests, state)
        if other.folder != manifests.folder:
            first, second = sorted((other.folder, manifests.folder))
            where = {"topic": state.topic, "table": first, "other": second}
            raise CdcError(TARGET_TWICE, "two tables hold offsets of one topic", where=where)
    return out


def folders(found: Sequence[Table], home: Callable[[str], str]) -> dict[str, str]:
    """Returns, by topic, the folder of the table that the sink goes on with. One that somebody has put aside, its offsets
    reset, is none: another one is begun at the topic's `home`."""
    there = {state.topic: manifests.folder for manifests, state in found if manifests.folder == home(state.topic)}
    return there | {topic: manifests.folder for topic, (manifests, _) in begun(found).items()}


def alter(files: Storage, place: LedgerAccess, changes: SinkOffsets | None) -> None:
    """Every table that changes gets a state with the new offsets and the epoch of whoever asks, which fences off tasks
    from before; the rows stay. CdcError when a newer task has been there; then nothing is changed. A table that was put
    aside with its offsets reset is given none while another one holds the topic's."""
    mine = list(of_sink(files, place.connector))
    held = {state.topic for _, state in mine if state.begun}
    for _, state in mine:
        if state.epoch > place.epoch:
            raise CdcError(FENCED, "a newer task has started meanwhile", where={"sink": place.connector})
    for manifests, state in mine:
        aside = state.topic in held and not state.begun
        manifests.commit(replace(state.altered(None if aside else changes), epoch=place.epoch))


def fresh(state: Manifest, batch: SinkBatch) -> bool:
    """Returns whether the table does not hold the batch yet. CdcError LEDGER_MOVED when it holds a part of it."""
    mine = {number: pair for (topic, number), pair in batch.offsets.items() if topic == state.topic}
    done = 0
    for number, (first, end) in mine.items():
        at = state.offsets.get(str(number), first)
        if at >= end:
            done += 1
        elif at > first:
            where: dict[str, str | int] = {"topic": state.topic, "partition": number, "offset": at}
            raise CdcError(LEDGER_MOVED, "the ledger stands inside the batch", where=where)
    if done and done < len(mine):
        raise CdcError(LEDGER_MOVED, "a part of the batch has been applied before", where={"topic": state.topic})
    return not done
