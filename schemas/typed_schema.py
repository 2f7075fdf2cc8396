"""A schema that is kept as text: JSON Schema and Protocol Buffers, as Confluent's registry types them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final, Literal

from cdcworker.schemas.avro import INVALID, SCHEMA_CHARS_MAX
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.untrusted.json_text import JsonLimits, JsonRefused, parse_json

SchemaType = Literal["AVRO", "JSON", "PROTOBUF"]
SCHEMA_TYPES: Final[tuple[SchemaType, ...]] = ("AVRO", "JSON", "PROTOBUF")
_JSON: Final = JsonLimits(bytes_max=4 * SCHEMA_CHARS_MAX)


@dataclass(frozen=True, slots=True)
class TypedSchema:
    """A schema of another type than Avro. `name` is that of the record that it describes, for the names of subjects."""

    type: SchemaType
    text: str
    name: str = ""

    @property
    def fingerprint(self) -> str:
        """The identity of the schema: its type is part of it, so that no text stands for schemas of two types."""
        return fingerprint_of(self.type, self.text)


def fingerprint_of(type: str, text: str) -> str:
    """Returns the identity of a schema of this type with this text, which is no Avro's."""
    try:
        return hashlib.sha256(f"{type}\0{text}".encode()).hexdigest()
    except UnicodeEncodeError as exc:
        raise CdcError(INVALID, "the schema holds text that is not Unicode") from exc


def check_text(type: str, text: str) -> None:
    """Raises CdcError `schema.invalid` for a text that is too long, or that is no JSON where it has to be."""
    if len(text) > SCHEMA_CHARS_MAX:
        raise CdcError(INVALID, f"the schema has {len(text)} characters")
    if type != "JSON":
        return
    try:
        parsed = parse_json(text, _JSON)
    except JsonRefused as exc:
        raise CdcError(INVALID, "the schema is not JSON") from exc
    if not isinstance(parsed, dict | bool):
        raise CdcError(INVALID, "a JSON Schema is an object, or true or false")
