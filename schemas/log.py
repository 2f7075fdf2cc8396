"""The schema log: which schemas exist, under which ids, and which one a subject used from which position on."""

from __future__ import annotations

import json
import logging
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

from cdcworker.schemas import avro
from cdcworker.schemas.change import Avro, JsonObject, Position
from cdcworker.schemas.errors import CdcError, declare
from cdcworker.schemas.evolve import ChangeClass, classify

log = logging.getLogger(__name__)

ID_CONFLICT = declare(
    "schema.id_conflict",
    "data",
    "One schema id stands for two schemas",
    "Two tasks registered colliding schemas at the same moment: resync one of the two tables named in the schema log.",
)
REJECTED = declare(
    "schema.log_record",
    "data",
    "A record of the schema log cannot be trusted",
    "Somebody else wrote to the schema topic: check its ACLs, then rewrite the record from a healthy copy.",
)

Level = Literal["NONE", "BACKWARD", "BACKWARD_TRANSITIVE", "FORWARD", "FORWARD_TRANSITIVE", "FULL", "FULL_TRANSITIVE"]
ID_MAX = 0x7FFFFFFF


class LogRecord(NamedTuple):
    """One record to append to the schema log."""

    key: str
    value: JsonObject | None


@dataclass(frozen=True)
class Meta:
    """Where a registration comes from. `table_id` and `path` are set by the task that owns the table."""

    table_id: int | None = None
    path: tuple[str, ...] = ()
    position: Position | None = None
    ddl: str | None = None


@dataclass(frozen=True)
class Registration:
    """What the encoder asks for before it hands out the first record with a schema."""

    subject: str
    schema: Avro
    meta: Meta

    @cached_property
    def canonical(self) -> str:
        return avro.canonical(self.schema)

    @cached_property
    def fingerprint(self) -> str:
        return avro.fingerprint_of_text(self.canonical)


@dataclass(frozen=True)
class StoredSchema:
    """One schema of the log. `text` is its canonical form."""

    id: int
    fingerprint: str
    text: str

    @cached_property
    def schema(self) -> Avro:
        """Parsed, and within the bounds on size, depth and fields."""
        schema = avro.parse(self.text)
        avro.check(schema)
        return schema

    @property
    def guid(self) -> str:
        return avro.guid(self.fingerprint)


@dataclass(frozen=True, slots=True)
class Version:
    """One use of a schema under a subject. `effective` is the source position of its first record."""

    subject: str
    version: int
    fingerprint: str
    change: str
    table_id: int | None = None
    path: tuple[str, ...] = ()
    effective: tuple[int, int] | None = None
    ddl: str | None = None


class Planned(NamedTuple):
    """The id to use, and what must be committed to the log first (nothing when the schema is known)."""

    id: int
    records: tuple[LogRecord, ...]


def schema_value(id: int, fp: str, text: str) -> JsonObject:
    return {"id": id, "fp": fp, "type": "AVRO", "schema": text, "references": []}


class SchemaLog:
    """A fold of the schema log. One thread applies; any thread reads."""

    def __init__(self, records: Iterable[tuple[str, JsonObject | None]] = ()) -> None:
        self._by_fingerprint: dict[str, StoredSchema] = {}
        self._by_id: dict[int, StoredSchema] = {}
        self._by_guid: dict[str, str] = {}
        self._versions: dict[str, tuple[Version, ...]] = {}
        self._uses: dict[str, tuple[tuple[str, int], ...]] = {}
        self._levels: dict[str, str] = {}
        self._conflicts: dict[int, set[str]] = {}
        self.rejected: dict[str, str] = {}
        """Keys of records that were not taken, and why."""
        for key, value in records:
            self.apply(key, value)

    # Fold

    def apply(self, key: str, value: JsonObject | None) -> None:
        """Take one record. A kind that is not known is left alone: a newer version may have written it."""
        kind, _, rest = key.partition("/")
        try:
            if kind == "schema" and value is not None:
                self._apply_schema(rest, value)
            elif kind == "use" and value is not None:
                self._apply_use(rest, value)
            elif kind == "config":
                self._apply_config(rest, value)
            self.rejected.pop(key, None)
        except (CdcError, KeyError, TypeError, ValueError) as exc:
            reason = exc.message if isinstance(exc, CdcError) else f"malformed: {type(exc).__name__}"
            self.rejected[key] = reason
            log.warning("schema_log_record_rejected key=%s error=%s", key, reason)

    def _apply_schema(self, fp: str, value: JsonObject) -> None:
        id, text = value["id"], value["schema"]
        if not isinstance(id, int) or not 0 < id <= ID_MAX:
            raise CdcError(REJECTED, "the id is not a positive 32-bit number")
        if not isinstance(text, str) or len(text) > avro.SCHEMA_CHARS_MAX:
            raise CdcError(REJECTED, "the schema is too large")
        if avro.fingerprint_of_text(text) != fp:
            raise CdcError(REJECTED, "the schema is not what its fingerprint says")
        known = self._by_fingerprint.get(fp)
        if known is not None and known.id == id:
            return
        stored = StoredSchema(id, fp, text)
        other = self._by_id.get(id)
        if other is not None and other.fingerprint != fp:
            self._conflicts.setdefault(id, {other.fingerprint}).add(fp)
            log.error("schema_id_conflict id=%d a=%s b=%s", id, other.fingerprint, fp)
        self._by_guid[stored.guid] = fp
        self._by_id[id] = stored
        self._by_fingerprint[fp] = stored

    def _apply_use(self, rest: str, value: JsonObject) -> None:
        subject, _, number = rest.rpartition("/")
        table = value.get("table") or {}
        effective = value.get("effective")
        use = Version(
            subject=subject,
            version=int(number),
            fingerprint=str(value["sha"]),
            change=str(value.get("change", "identical")),
            table_id=table.get("id"),
            path=tuple(table.get("path", ())),
            effective=(int(effective["commit_lsn"]), int(effective["tx_index"])) if effective else None,
            ddl=value.get("ddl"),
        )
        if not subject or use.version < 1:
            raise CdcError(REJECTED, "the key names no subject or no version")
        others = [version for version in self._versions.get(subject, ()) if version.version != use.version]
        self._versions[subject] = tuple(sorted((*others, use), key=lambda version: version.version))
        uses = self._uses.get(use.fingerprint, ())
        if (subject, use.version) not in uses:
            self._uses[use.fingerprint] = (*uses, (subject, use.version))

    def _apply_config(self, subject: str, value: JsonObject | None) -> None:
        if value is None:
            self._levels.pop(subject, None)
        else:
            self._levels[subject] = str(value["compatibility"])

    # Read

    def by_id(self, id: int) -> StoredSchema | None:
        """The schema of an id, validated. Raises where the log is ambiguous or holds a hostile schema."""
        if id in self._conflicts:
            raise CdcError(ID_CONFLICT, "two schemas carry the same id", where={"id": id})
        return self._checked(self._by_id.get(id))

    def by_fingerprint(self, fp: str) -> StoredSchema | None:
        return self._checked(self._by_fingerprint.get(fp))

    def by_guid(self, guid: str) -> StoredSchema | None:
        return self._checked(self._by_fingerprint.get(self._by_guid.get(guid.lower(), "")))

    @staticmethod
    def _checked(stored: StoredSchema | None) -> StoredSchema | None:
        if stored is not None:
            _ = stored.schema  # parsing is checking
        return stored

    def schemas(self) -> list[StoredSchema]:
        return list(self._by_fingerprint.values())

    def subjects(self) -> list[str]:
        return sorted(self._versions)

    def versions(self, subject: str) -> tuple[Version, ...]:
        return self._versions.get(subject, ())

    def uses(self, fp: str) -> tuple[tuple[str, int], ...]:
        """(subject, version) of every use of a schema."""
        return self._uses.get(fp, ())

    def version_of(self, subject: str, fp: str) -> int | None:
        """The newest version of the subject that uses this schema."""
        found = [version.version for version in self.versions(subject) if version.fingerprint == fp]
        return found[-1] if found else None

    def in_force(self, subject: str, commit_lsn: int, tx_index: int = 0) -> Version | None:
        """The version whose records are written at this source position."""
        placed = [version for version in self.versions(subject) if version.effective is not None]
        placed.sort(key=lambda version: (version.effective or (0, 0), version.version))
        at = bisect_right([version.effective or (0, 0) for version in placed], (commit_lsn, tx_index))
        return placed[at - 1] if at else None

    def owned(self, subject: str) -> bool:
        """Whether a task gives this subject its versions."""
        return any(version.table_id is not None for version in self.versions(subject))

    def level(self, subject: str = "") -> str | None:
        """The compatibility level that was set for a subject, or globally."""
        return self._levels.get(subject)

    # Plan

    def plan_registration(self, subject: str, schema: Avro, meta: Meta | None = None) -> Planned:
        """The id of a schema under a subject, and the records that make it so. Plans nothing that is known already."""
        meta = meta or Meta()
        text = avro.canonical(schema)
        if len(text) > avro.SCHEMA_CHARS_MAX:
            raise CdcError(avro.INVALID, f"the schema has {len(text)} characters", where={"subject": subject})
        fp = avro.fingerprint_of_text(text)
        id, records = self._plan_schema(fp, text)
        previous = self._previous(subject, meta)
        if self._is_new_use(subject, fp, previous, meta):
            records.append(self._plan_use(subject, fp, schema, previous, meta))
        return Planned(id, tuple(records))

    def _plan_schema(self, fp: str, text: str) -> tuple[int, list[LogRecord]]:
        known = self._by_fingerprint.get(fp)
        if known is not None:
            return known.id, []
        natural = id = avro.schema_id(fp)
        while id in self._by_id:
            id = id + 1 if id < ID_MAX else 1
        records = [LogRecord(f"schema/{fp}", schema_value(id, fp, text))]
        if id != natural:
            records.append(LogRecord(f"alias/{id}", {"sha": fp, "natural": natural}))
        return id, records

    def _previous(self, subject: str, meta: Meta) -> Version | None:
        """What was in force just before: by position where there is one (a replay may lie before the newest)."""
        versions = self.versions(subject)
        if meta.position is not None:
            found = self.in_force(subject, meta.position.commit_lsn, meta.position.tx_index)
            if found is not None:
                return found
        return versions[-1] if versions else None

    def _is_new_use(self, subject: str, fp: str, previous: Version | None, meta: Meta) -> bool:
        if previous is None:
            return True
        same = previous.fingerprint == fp
        if meta.position is None:
            return self.version_of(subject, fp) is None
        if same and previous.table_id in (meta.table_id, None):
            return False
        newest = self.versions(subject)[-1]
        # A replay meets versions that it gave itself before: only what is new there is recorded.
        return previous is newest or self.version_of(subject, fp) is None

    def _plan_use(self, subject: str, fp: str, schema: Avro, previous: Version | None, meta: Meta) -> LogRecord:
        versions = self.versions(subject)
        number = versions[-1].version + 1 if versions else 1
        value: JsonObject = {"sha": fp, "change": self._class(previous, schema)}
        if meta.table_id is not None:
            value["table"] = {"id": meta.table_id, "path": list(meta.path)}
        if meta.position is not None:
            value["effective"] = {"commit_lsn": meta.position.commit_lsn, "tx_index": meta.position.tx_index}
        if meta.ddl is not None:
            value["ddl"] = meta.ddl
        return LogRecord(f"use/{subject}/{number}", value)

    def _class(self, previous: Version | None, schema: Avro) -> ChangeClass:
        stored = self._by_fingerprint.get(previous.fingerprint) if previous else None
        return classify(stored.schema, schema) if stored is not None else "add"

    def plan_level(self, subject: str, level: Level | None) -> LogRecord:
        return LogRecord(f"config/{subject}", None if level is None else {"compatibility": level})


def encode_record(record: LogRecord) -> tuple[bytes, bytes | None]:
    """The bytes of a record: the same everywhere, so that a schema registered twice is one record after compaction."""
    value = record.value
    body = None if value is None else json.dumps(value, separators=(",", ":"), sort_keys=True).encode()
    return record.key.encode(), body


def plan_all(view: SchemaLog, registrations: Sequence[Registration]) -> tuple[list[int], list[LogRecord]]:
    """Plan the registrations of one table shape; a record that two of them need is planned once."""
    ids: list[int] = []
    records: list[LogRecord] = []
    known: set[str] = set()
    for registration in registrations:
        planned = view.plan_registration(registration.subject, registration.schema, registration.meta)
        ids.append(planned.id)
        records += [record for record in planned.records if record.key not in known]
        known.update(record.key for record in planned.records)
    return ids, records


def register_in_memory(view: SchemaLog) -> Callable[[Sequence[Registration]], Sequence[int]]:
    """A `register` callback for an Encoder that needs no log beyond this process (tests, dry runs)."""

    def register(registrations: Sequence[Registration]) -> Sequence[int]:
        ids, records = plan_all(view, registrations)
        for record in records:
            view.apply(record.key, record.value)
        return ids

    return register
