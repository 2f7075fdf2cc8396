"""Dead letters of a warehouse as records again: bytes, headers, and columns of today."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from cdcworker.connectors.api.table_batch import POSITION, DeadLetter, TableBatch
from cdcworker.connectors.arrow.assembler import Assembler
from cdcworker.connectors.arrow.envelope_schemas import EnvelopeSchemas
from cdcworker.connectors.arrow.headers import NEW_KEY, OLD_KEY
from cdcworker.connectors.sink_errors import SCHEMA_REFUSED
from cdcworker.schemas.errors import CdcError, declare
from cdcworker.schemas.topics import avro_name, subject, unescape

if TYPE_CHECKING:
    import pyarrow as pa

INCOMPLETE: Final = declare(
    "spark.letter_incomplete",
    "data",
    "A dead letter was kept without its headers",
    "It was set aside by an older version. Stop the sink and set its offset back to the record: GET and PATCH .../offsets.",
)
UNPLACED: Final = declare(
    "spark.letter_unplaced",
    "data",
    "A dead letter deletes a key and tells no position",
    "Nothing says whether its key is newer in the warehouse. It is done with when the delete before it is.",
)
ROWLESS: Final = declare(
    "spark.letter_rowless",
    "data",
    "A dead letter changes a part of a row that the warehouse does not have",
    "Another dead letter may hold the row: re-drive again when that one is mended. Or load the table once more.",
)
BYTES_MAX: Final = 32 * 1024 * 1024
"""Of the letters of one step, unless one alone is larger."""
FRAME: Final = 5
"""Bytes before a key that say which schema it has."""
AT_ONCE: Final = 200
"""Letters of one step."""
Place = tuple[str, int, int]
"""Topic, partition, offset."""
START: Final[Place] = ("", -1, -1)
"""Before all of them."""


@dataclass(frozen=True, slots=True)
class StoredLetter:
    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[Mapping[str, Any]] | None
    """None: nobody kept them."""
    code: str = ""
    cause: str = ""

    @property
    def place(self) -> Place:
        return self.topic, self.partition, self.offset

    @property
    def keys(self) -> set[bytes]:
        """The encoded keys that the record concerns, without the ids of their schemas."""
        others = (item["value"] for item in self.headers or () if item["key"] in (OLD_KEY, NEW_KEY))
        return {key[FRAME:] for key in (self.key, *others) if key}

    @property
    def bare(self) -> bool:
        """Returns whether the record has a value and was stored without its headers, so that it cannot be applied."""
        return self.value is not None and self.headers is None

    def says(self, error: CdcError) -> bool:
        """Returns whether the letter is stored for this error already."""
        return (self.code, self.cause) == (error.code, error.message)

    @property
    def where(self) -> dict[str, str | int]:
        return {"topic": self.topic, "partition": self.partition, "offset": self.offset}


@dataclass(slots=True)
class Redriven:
    """`rows` are other now: fewer than `letters` where newer changes of their keys are there, or several are of one."""

    letters: int = 0
    rows: int = 0
    failed: int = 0
    left: int = 0
    next: Place | None = None
    """Where the time was over; None: every letter had its turn."""
    causes: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, done: RedriveResult) -> None:
        """Counts what has become of the letters of one step."""
        self.letters += len(done.letters)
        self.rows += done.rows
        self.failed += len(done.failed)
        self.causes.update((error.code, error.message) for _, error in done.failed)


Failed = tuple[StoredLetter, CdcError]


@dataclass(slots=True)
class RedriveResult:
    """What has become of some letters."""

    letters: list[StoredLetter] = field(default_factory=list)
    """They are done with."""
    failed: list[Failed] = field(default_factory=list)
    rows: int = 0
    others: list[StoredLetter] = field(default_factory=list)
    """Somebody else has put them in meanwhile, or the sink reads their records again."""

    def add(self, other: RedriveResult) -> None:
        self.letters += other.letters
        self.failed += other.failed
        self.rows += other.rows
        self.others += other.others


@dataclass(slots=True)
class RedriveWork:
    shapes: EnvelopeSchemas
    assembler: Assembler
    log: bool

    def alive(self, topic: str) -> frozenset[int]:
        """The source's identities of the columns that the newest schema has."""
        id = self.shapes.latest(subject(topic, "value"))
        if id is None:
            return frozenset()
        members: Iterator[Mapping[str, Any]] = iter(self.shapes.value(id, {"topic": topic}).row["fields"])
        return frozenset(int(member["cdc.colid"]) for member in members if member.get("cdc.colid"))


def table_of(letters: Iterable[StoredLetter]) -> pa.Table:
    """Records as Spark hands them over."""
    import pyarrow as pa

    header = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    kinds = {"topic": pa.string(), "partition": pa.int32(), "offset": pa.int64()}
    kinds |= {"key": pa.binary(), "value": pa.binary(), "headers": header}
    rows = [{name: getattr(letter, name) for name in kinds} for letter in letters]
    for row in rows:
        row["headers"] = row["headers"] or None
    return pa.Table.from_pylist(rows, pa.schema(list(kinds.items())))


def follows(letter: StoredLetter, before: StoredLetter | None) -> bool:
    """Returns whether a dead letter is the tombstone behind the delete of the same key."""
    return (
        letter.value is None
        and before is not None
        and (before.topic, before.partition, before.key) == (letter.topic, letter.partition, letter.key)
    )


def of_one_step(letters: list[StoredLetter]) -> list[StoredLetter]:
    """Returns, of one letter more than a step takes, those of the step: a delete and its tombstone go together."""
    return letters[:-1] if len(letters) > AT_ONCE and not follows(letters[-1], letters[-2]) else letters


def applied(
    letters: Sequence[StoredLetter], attempt: Callable[[Sequence[StoredLetter]], RedriveResult]
) -> RedriveResult:
    """Applies letters together or, when that is refused, in halves, down to those that cannot be applied."""
    if not letters:
        return RedriveResult()
    try:
        return attempt(letters)
    except CdcError as exc:
        if exc.kind in ("transient", "fenced"):
            raise
        if len(letters) == 1:
            return RedriveResult(failed=[(letters[0], exc)])
    half = len(letters) // 2
    done = applied(letters[:half], attempt)
    done.add(applied(letters[half:], attempt))
    return done


def refused_at_build(
    letters: Sequence[StoredLetter], dead: Iterable[DeadLetter]
) -> tuple[list[StoredLetter], list[Failed]]:
    """Returns the letters that were decoded, and those that were not: they are `dead` letters of the batch that is made of them."""
    errors = {(each.partition, each.offset): CdcError(each.code, each.cause) for each in dead}
    failed = [(each, errors[each.place[1:]]) for each in letters if each.place[1:] in errors]
    return [each for each in letters if each.place[1:] not in errors], failed


def waves(letters: Iterable[StoredLetter]) -> Iterator[list[StoredLetter]]:
    """Groups dead letters in their order, no key twice in a group: between two letters of a key there may be changes that
    were applied, and what the older one says of a column must not be taken for what the newer one leaves as it is."""
    wave: list[StoredLetter] = []
    seen: set[bytes] = set()
    for letter in letters:
        if wave and not seen.isdisjoint(letter.keys):
            yield wave
            wave, seen = [], set()
        wave.append(letter)
        seen |= letter.keys
    if wave:
        yield wave


def of_today(batch: TableBatch, known: Mapping[int, str], alive: Iterable[int]) -> TableBatch:
    """The batch with its columns called as they are called now. `known`: the table's columns by the source's identity of
    them; `alive`: those that the newest schema has. One that is gone stays out where another has its name."""
    names: dict[str, str | None] = {}
    for member in batch.schema["fields"]:
        field, id = str(member["name"]), int(member.get("cdc.colid") or 0)
        name = known.get(id, unescape(field)) if id else unescape(field)
        taken = any(other != id and called == name for other, called in known.items())
        names[field] = None if id and taken and id not in alive else avro_name(name)
    if all(name == field for field, name in names.items()):
        return batch
    kept = [name for name in names.values() if name is not None]
    if len(set(kept)) < len(kept):
        raise CdcError(SCHEMA_REFUSED, "two columns of the record are one in the table", where={"topic": batch.table})
    return _renamed(batch, names)


def _renamed(batch: TableBatch, names: Mapping[str, str | None]) -> TableBatch:
    def table(rows: pa.Table | None) -> Any:
        if rows is None:
            return None
        kept = rows.select([name for name in rows.column_names if names.get(name, name) is not None])
        return kept.rename_columns([names.get(name, name) or name for name in kept.column_names])

    def flags(found: Mapping[str, Any]) -> dict[str, Any]:
        pairs = ((names.get(name, name), value) for name, value in found.items())
        return {name: value for name, value in pairs if name is not None}

    fields = [
        {**member, "name": names[str(member["name"])]}
        for member in batch.schema["fields"]
        if names[str(member["name"])]
    ]
    return replace(
        batch,
        key=tuple(names.get(name, name) or name for name in batch.key),
        schema={**batch.schema, "fields": fields},
        upserts=table(batch.upserts),
        deletes=table(batch.deletes),
        unchanged=flags(batch.unchanged),
        origins=table(batch.origins),
        moved=table(batch.moved),
        moved_unchanged=flags(batch.moved_unchanged),
        moved_origins=table(batch.moved_origins),
    )


def since(part: TableBatch, floor: bytes | None) -> TableBatch:
    """Returns the batch of a table without a key without rows from before a TRUNCATE at `floor`; nothing else would keep
    them out."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if part.key or not floor or not part.upserts.num_rows:
        return part
    newer = pc.greater(part.upserts[POSITION].cast(pa.binary()), pa.scalar(floor, pa.binary()))
    return replace(part, upserts=part.upserts.filter(newer))


def headers_text(headers: Sequence[tuple[str, bytes | None]]) -> str:
    """Returns headers as JSON: pairs of a name and hexadecimal bytes."""
    return json.dumps([[name, None if content is None else content.hex()] for name, content in headers])


def headers_of(pairs: Iterable[Sequence[str | None]]) -> list[dict[str, Any]]:
    """Returns stored headers in the form in which Spark returns those of a record."""
    return [{"key": name, "value": None if text is None else bytes.fromhex(text)} for name, text in pairs]
