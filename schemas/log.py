"""The schema log: all schemas with their ids, and the versions of each subject with their source positions."""

from __future__ import annotations

import json
import logging
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeVar, get_args

from cdcworker.schemas import avro
from cdcworker.schemas.avro import SCHEMA_TYPES, SchemaType, TypedSchema, check_text, fingerprint_of
from cdcworker.schemas.change import Avro, JsonObject, Position
from cdcworker.schemas.errors import CdcError, declare
from cdcworker.schemas.evolve import ChangeClass, classify
from cdcworker.schemas.untrusted.json_text import JsonRefused, parse_object
from cdcworker.schemas.untrusted.refusals import REFUSALS

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
"""The compatibility level of a subject, as in Confluent's registry."""
OTHER_TYPE = declare(
    "schema.other_type",
    "data",
    "A schema is of another type than its reader takes",
    "Name the converter in whose format the topic is written; the registry's answer says the schema's type.",
)
ID_MAX = 0x7FFFFFFF
VERSION_DIGITS_MAX = 10
REJECTED_MAX = 1_000
LOG_NAME = "schemas"
UNREADABLE = (CdcError, KeyError, TypeError, ValueError, ArithmeticError, AttributeError, RecursionError)
"""The exceptions of a malformed record: whoever can write to the log can write any JSON."""
T = TypeVar("T")


class SchemaLogRecord(NamedTuple):
    """A record of the schema log: `schema/<fingerprint>`, `use/<subject>/<version>`, `alias/<id>` or
    `config/<subject>`."""

    key: str
    value: JsonObject | None


@dataclass(frozen=True)
class RegistrationMeta:
    """The origin of a registration. `table_id` and `path` are set by the task that owns the table."""

    table_id: int | None = None
    path: tuple[str, ...] = ()
    position: Position | None = None
    ddl: str | None = None


@dataclass(frozen=True)
class Registration:
    """A schema to register under a subject, before the first record with it is produced (INV-4)."""

    subject: str
    schema: Avro | TypedSchema
    meta: RegistrationMeta
    former: tuple[Avro, ...] = ()
    """Schemas of the same encoding: a subject that has one keeps it, so that its records keep their bytes."""

    @cached_property
    def canonical(self) -> str:
        """The canonical form of the schema, or its text where it is no Avro."""
        return text_of(self.schema)

    @cached_property
    def fingerprint(self) -> str:
        """The identity of the schema."""
        return _fingerprint(self.schema, self.canonical)


def text_of(schema: Avro | TypedSchema) -> str:
    """Returns the text of a schema as it is kept."""
    return schema.text if isinstance(schema, TypedSchema) else avro.canonical(schema)


def fingerprint_of_schema(schema: Avro | TypedSchema) -> str:
    """Returns the identity of a schema."""
    return _fingerprint(schema, text_of(schema))


def _fingerprint(schema: Avro | TypedSchema, text: str) -> str:
    return schema.fingerprint if isinstance(schema, TypedSchema) else avro.fingerprint_of_text(text)


@dataclass(frozen=True)
class StoredSchema:
    """A schema of the log. `text` is its canonical form, or as it was registered where it is no Avro."""

    id: int
    fingerprint: str
    text: str
    type: SchemaType = "AVRO"

    @cached_property
    def schema(self) -> Avro:
        """The parsed schema. Raises CdcError `schema.invalid` if it exceeds the bounds on size, depth and fields, and
        `schema.other_type` if it is no Avro."""
        if self.type != "AVRO":
            raise CdcError(OTHER_TYPE, f"the schema is of type {self.type}", where={"id": self.id})
        schema = avro.parse(self.text)
        avro.check(schema)
        return schema

    @property
    def guid(self) -> str:
        """The GUID of the schema."""
        return avro.guid(self.fingerprint)


@dataclass(frozen=True, slots=True)
class SubjectVersion:
    """A version of a subject. `effective` is the source position of the first record with its schema."""

    subject: str
    version: int
    fingerprint: str
    change: str
    table_id: int | None = None
    path: tuple[str, ...] = ()
    effective: tuple[int, int] | None = None
    ddl: str | None = None


class PlannedRegistration(NamedTuple):
    """The id of a schema, and the records to commit before it is used; none if the schema is known."""

    id: int
    records: tuple[SchemaLogRecord, ...]


def schema_value(id: int, fp: str, text: str, type: SchemaType = "AVRO") -> JsonObject:
    """Returns the value of a `schema/<fingerprint>` record."""
    return {"id": id, "fp": fp, "type": type, "schema": text, "references": []}


class SchemaLog:
    """The fold of the schema log. One thread applies records; any thread reads."""

    def __init__(self, records: Iterable[tuple[str, JsonObject | None]] = ()) -> None:
        self._by_fingerprint: dict[str, StoredSchema] = {}
        self._by_id: dict[int, StoredSchema] = {}
        self._by_guid: dict[str, str] = {}
        self._versions: dict[str, tuple[SubjectVersion, ...]] = {}
        self._uses: dict[str, tuple[tuple[str, int], ...]] = {}
        self._levels: dict[str, str] = {}
        self._conflicts: dict[int, set[str]] = {}
        self.rejected: dict[str, str] = {}
        """The reasons why records were rejected, by key; of the last `REJECTED_MAX` keys."""
        self._reserved: dict[str, int] = {}
        """The highest version of a subject whose record was rejected: no other use gets its number."""
        for key, value in records:
            self.apply(key, value)

    # Fold

    def read(self, key: bytes | None, value: bytes | None, *, partition: int = 0, offset: int = -1) -> None:
        """Applies one record as it lies in Kafka. What is no record is refused by itself, counted and told."""
        try:
            if not isinstance(key, bytes):
                raise JsonRefused("no key")
            name = key.decode()
            content, refused = (None, "") if value is None else _content_of(value)
        except ValueError as exc:
            reason = str(exc) if isinstance(exc, JsonRefused) else "not UTF-8"
            REFUSALS.add(LOG_NAME, reason, partition=partition, offset=offset)
            return
        if refused:
            REFUSALS.add(LOG_NAME, refused, partition=partition, offset=offset, key=name)
        self.apply(name, content, refused=refused, offset=offset)

    def apply(self, key: str, value: JsonObject | None, *, refused: str = "", offset: int = -1) -> None:
        """Applies one record. Unknown kinds are ignored: a newer version may have written them.

        `refused` is the reason why the record's value could not be read; `value` does not count then.
        """
        if refused:
            self._reject(key, refused)
            return
        kind, _, rest = key.partition("/")
        try:
            if kind == "schema" and value is not None:
                self._apply_schema(rest, value)
            elif kind == "use" and value is not None:
                self._apply_use(rest, value)
            elif kind == "config":
                self._apply_config(rest, value)
            self.rejected.pop(key, None)
        except UNREADABLE as exc:
            reason = exc.message if isinstance(exc, CdcError) else f"malformed: {type(exc).__name__}"
            self._reject(key, reason)
            REFUSALS.add(LOG_NAME, reason, offset=offset, key=key)

    def _reject(self, key: str, reason: str) -> None:
        self.rejected.pop(key, None)
        self.rejected[key] = reason
        if len(self.rejected) > REJECTED_MAX:
            self.rejected.pop(next(iter(self.rejected)))
        subject, _, number = key.removeprefix("use/").rpartition("/")
        if key.startswith("use/") and subject and _is_version(number):
            self._reserved[subject] = max(self._reserved.get(subject, 0), int(number))

    def _apply_schema(self, fp: str, value: JsonObject) -> None:
        id, text = value["id"], value["schema"]
        if isinstance(id, bool) or not isinstance(id, int) or not 0 < id <= ID_MAX:
            raise CdcError(REJECTED, "the id is not a positive 32-bit number")
        if not isinstance(text, str) or len(text) > avro.SCHEMA_CHARS_MAX:
            raise CdcError(REJECTED, "the schema is too large")
        type = value.get("type", "AVRO")
        if type not in SCHEMA_TYPES:
            raise CdcError(REJECTED, "the schema is of an unknown type")
        if (avro.fingerprint_of_text(text) if type == "AVRO" else fingerprint_of(type, text)) != fp:
            raise CdcError(REJECTED, "the schema is not what its fingerprint says")
        known = self._by_fingerprint.get(fp)
        if known is not None and known.id == id:
            return
        stored = StoredSchema(id, fp, text, type)
        other = self._by_id.get(id)
        if other is not None and other.fingerprint != fp:
            self._conflicts.setdefault(id, {other.fingerprint}).add(fp)
            log.error("schema_id_conflict id=%d a=%s b=%s", id, other.fingerprint, fp)
        self._by_guid[stored.guid] = fp
        self._by_id[id] = stored
        self._by_fingerprint[fp] = stored

    def _apply_use(self, rest: str, value: JsonObject) -> None:
        subject, _, number = rest.rpartition("/")
        if not subject or not _is_version(number):
            raise CdcError(REJECTED, "the key names no subject or no version")
        table = _typed(value.get("table") or {}, dict)
        effective = value.get("effective")
        ddl, table_id = value.get("ddl"), table.get("id")
        use = SubjectVersion(
            subject=subject,
            version=int(number),
            fingerprint=_typed(value["sha"], str),
            change=_typed(value.get("change", "identical"), str),
            table_id=None if table_id is None else _place(table_id),
            path=tuple(_typed(part, str) for part in _typed(table.get("path", []), list)),
            effective=(_place(effective["commit_lsn"]), _place(effective["tx_index"])) if effective else None,
            ddl=None if ddl is None else _typed(ddl, str),
        )
        others = [version for version in self._versions.get(subject, ()) if version.version != use.version]
        self._versions[subject] = tuple(sorted((*others, use), key=lambda version: version.version))
        uses = self._uses.get(use.fingerprint, ())
        if (subject, use.version) not in uses:
            self._uses[use.fingerprint] = (*uses, (subject, use.version))

    def _apply_config(self, subject: str, value: JsonObject | None) -> None:
        if value is None:
            self._levels.pop(subject, None)
        else:
            level = value["compatibility"]
            if level not in get_args(Level):
                raise CdcError(REJECTED, "the compatibility level is not one of Confluent's")
            self._levels[subject] = level

    # Read

    def by_id(self, id: int) -> StoredSchema | None:
        """Returns the schema of an id, None if it is unknown.

        Raises CdcError `schema.id_conflict` if two schemas have the id, and `schema.invalid` for a schema out of
        bounds.
        """
        if id in self._conflicts:
            raise CdcError(ID_CONFLICT, "two schemas carry the same id", where={"id": id})
        return self._checked(self._by_id.get(id))

    def by_fingerprint(self, fp: str) -> StoredSchema | None:
        """Returns the schema with this identity, None if it is unknown. Raises CdcError `schema.invalid`."""
        return self._checked(self._by_fingerprint.get(fp))

    def by_guid(self, guid: str) -> StoredSchema | None:
        """Returns the schema of a GUID, None if it is unknown. Raises CdcError `schema.invalid`."""
        return self._checked(self._by_fingerprint.get(self._by_guid.get(guid.lower(), "")))

    @staticmethod
    def _checked(stored: StoredSchema | None) -> StoredSchema | None:
        if stored is not None and stored.type == "AVRO":
            _ = stored.schema  # parsing is checking
        return stored

    def schemas(self) -> list[StoredSchema]:
        """Returns all schemas."""
        return list(self._by_fingerprint.values())

    def subjects(self) -> list[str]:
        """Returns the names of all subjects, sorted."""
        return sorted(self._versions)

    def versions(self, subject: str) -> tuple[SubjectVersion, ...]:
        """Returns the versions of a subject, oldest first."""
        return self._versions.get(subject, ())

    def uses(self, fp: str) -> tuple[tuple[str, int], ...]:
        """Returns (subject, version) of each use of a schema."""
        return self._uses.get(fp, ())

    def version_of(self, subject: str, fp: str) -> int | None:
        """Returns the newest version of the subject that uses this schema, None without one."""
        numbers = [version.version for version in self.versions(subject) if version.fingerprint == fp]
        return numbers[-1] if numbers else None

    def in_force(self, subject: str, commit: int, event: int = 0) -> SubjectVersion | None:
        """Returns the version that is in force at this source position, None before the first one."""
        placed = [version for version in self.versions(subject) if version.effective is not None]
        placed.sort(key=lambda version: (version.effective or (0, 0), version.version))
        at = bisect_right([version.effective or (0, 0) for version in placed], (commit, event))
        return placed[at - 1] if at else None

    def owned(self, subject: str) -> bool:
        """Tells whether a task registers the versions of this subject."""
        return any(version.table_id is not None for version in self.versions(subject))

    def level(self, subject: str = "") -> str | None:
        """Returns the compatibility level of a subject, or with an empty name the global one; None if it is not set."""
        return self._levels.get(subject)

    # Plan

    def kept(self, registration: Registration) -> Registration:
        """Returns the registration with the schema that its subject keeps."""
        for schema in registration.former:
            former = replace(registration, schema=schema, former=())
            if self.version_of(registration.subject, former.fingerprint) is not None:
                return former
        return registration

    def plan_registration(
        self, subject: str, schema: Avro | TypedSchema, meta: RegistrationMeta | None = None
    ) -> PlannedRegistration:
        """Plans the registration of a schema under a subject. Raises CdcError `schema.invalid` for a schema out of
        bounds."""
        meta = meta or RegistrationMeta()
        text = text_of(schema)
        if len(text) > avro.SCHEMA_CHARS_MAX:
            raise CdcError(avro.INVALID, f"the schema has {len(text)} characters", where={"subject": subject})
        type: SchemaType = schema.type if isinstance(schema, TypedSchema) else "AVRO"
        if type != "AVRO":
            check_text(type, text)
        fp = _fingerprint(schema, text)
        id, records = self._plan_schema(fp, text, type)
        previous = self._previous(subject, meta)
        if self._is_new_use(subject, fp, previous, meta):
            records.append(self._plan_use(subject, fp, schema, previous, meta))
        return PlannedRegistration(id, tuple(records))

    def _plan_schema(self, fp: str, text: str, type: SchemaType) -> tuple[int, list[SchemaLogRecord]]:
        known = self._by_fingerprint.get(fp)
        if known is not None:
            return known.id, []
        natural = id = avro.schema_id(fp)
        while id in self._by_id:
            id = id + 1 if id < ID_MAX else 1
        records = [SchemaLogRecord(f"schema/{fp}", schema_value(id, fp, text, type))]
        if id != natural:
            records.append(SchemaLogRecord(f"alias/{id}", {"sha": fp, "natural": natural}))
        return id, records

    def _previous(self, subject: str, meta: RegistrationMeta) -> SubjectVersion | None:
        """Returns the version in force before: by position if there is one, as a replay may be before the newest
        version."""
        versions = self.versions(subject)
        if meta.position is not None:
            version = self.in_force(subject, meta.position.commit, meta.position.event)
            if version is not None:
                return version
        return versions[-1] if versions else None

    def _is_new_use(self, subject: str, fp: str, previous: SubjectVersion | None, meta: RegistrationMeta) -> bool:
        if previous is None:
            return True
        same = previous.fingerprint == fp
        if meta.position is None:
            return self.version_of(subject, fp) is None
        if same and previous.table_id in (meta.table_id, None):
            return False
        newest = self.versions(subject)[-1]
        # A replay meets versions that it has registered itself: only new ones are recorded.
        return previous is newest or self.version_of(subject, fp) is None

    def _plan_use(
        self, subject: str, fp: str, schema: Avro | TypedSchema, previous: SubjectVersion | None, meta: RegistrationMeta
    ) -> SchemaLogRecord:
        versions = self.versions(subject)
        number = max(versions[-1].version if versions else 0, self._reserved.get(subject, 0)) + 1
        value: JsonObject = {"sha": fp, "change": self._class(previous, schema)}
        if meta.table_id is not None:
            value["table"] = {"id": meta.table_id, "path": list(meta.path)}
        if meta.position is not None:
            value["effective"] = {"commit_lsn": meta.position.commit, "tx_index": meta.position.event}
        if meta.ddl is not None:
            value["ddl"] = meta.ddl
        return SchemaLogRecord(f"use/{subject}/{number}", value)

    def _class(self, previous: SubjectVersion | None, schema: Avro | TypedSchema) -> ChangeClass:
        """Returns what the change means for the data. Of schemas that are no Avro it is only known that they are others."""
        stored = self._by_fingerprint.get(previous.fingerprint) if previous else None
        if stored is None or isinstance(schema, TypedSchema) or stored.type != "AVRO":
            return "add"
        return classify(stored.schema, schema)

    def plan_level(self, subject: str, level: Level | None) -> SchemaLogRecord:
        """Returns the record that sets the compatibility level of a subject, or with None removes it."""
        return SchemaLogRecord(f"config/{subject}", None if level is None else {"compatibility": level})


def _content_of(value: bytes) -> tuple[JsonObject | None, str]:
    try:
        return parse_object(value), ""
    except JsonRefused as exc:
        return None, str(exc)


def _is_version(number: str) -> bool:
    is_number = number.isascii() and number.isdigit() and len(number) <= VERSION_DIGITS_MAX
    return is_number and 1 <= int(number) < ID_MAX


def _typed(value: Any, kind: type[T]) -> T:
    if not isinstance(value, kind):
        raise CdcError(REJECTED, "a field is of a wrong type")
    return value


def _place(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 64:
        raise CdcError(REJECTED, "a field is not a number of 64 bits")
    return value


def encode_record(record: SchemaLogRecord) -> tuple[bytes, bytes | None]:
    """Returns key and value in Kafka. Equal records give equal bytes, so that compaction merges a schema registered
    twice."""
    value = record.value
    body = None if value is None else json.dumps(value, separators=(",", ":"), sort_keys=True).encode()
    return record.key.encode(), body


def plan_all(view: SchemaLog, registrations: Sequence[Registration]) -> tuple[list[int], list[SchemaLogRecord]]:
    """Plans several registrations together: returns their ids and the records to commit, each record once."""
    ids: list[int] = []
    records: list[SchemaLogRecord] = []
    known: set[str] = set()
    for asked in registrations:
        registration = view.kept(asked)
        planned = view.plan_registration(registration.subject, registration.schema, registration.meta)
        ids.append(planned.id)
        records += [record for record in planned.records if record.key not in known]
        known.update(record.key for record in planned.records)
    return ids, records


def register_in_memory(view: SchemaLog) -> Callable[[Sequence[Registration]], Sequence[int]]:
    """Returns a `register` callback that keeps the schemas in this process alone, for tests and dry runs."""

    def register(registrations: Sequence[Registration]) -> Sequence[int]:
        ids, records = plan_all(view, registrations)
        for record in records:
            view.apply(record.key, record.value)
        return ids

    return register
