"""What a wire format says of itself: the names of its converter, its keys, how it writes and how it reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

from cdcworker.connectors.config.definition import ConfigKey, ConfigType
from cdcworker.connectors.transforms.data import ConnectSchema
from cdcworker.schemas.avro import SchemaType
from cdcworker.schemas.errors import CdcError, declare
from cdcworker.schemas.log import StoredSchema
from cdcworker.schemas.record_format import WireFormat

RECORD_UNREADABLE: Final = declare(
    "sink.record_unreadable",
    "data",
    "A record's key or value is not what the converter reads",
    "Choose the key.converter and value.converter that the topic was written with. With errors.tolerance=all such records are"
    " dead letters.",
)
GROUP: Final = "Format"
SCHEMAS_MAX: Final = 1_024
"""Schemas of one side of records that are kept ready."""
Convert = Callable[[Any], Any]
Headers = Sequence[tuple[str, bytes | None]]
Settings = Mapping[str, Any]
"""The parsed values of a format's keys, by their names without `key.converter.` or `value.converter.`."""


class Typed(NamedTuple):
    """A value with its schema, which is None where there is none."""

    schema: ConnectSchema | None
    value: Any


NOTHING: Final = Typed(None, None)


class FindsSchemas(Protocol):
    """Finds the schema of an id."""

    def stored(self, id: int) -> StoredSchema:
        """Raises CdcError `schema.unknown_id`."""


class ReadsValues(Protocol):
    """Reads the keys or the values of records. One thread uses it."""

    def read(self, data: bytes | None, headers: Headers = ()) -> Typed:
        """Raises CdcError of kind `data`, without values."""


@dataclass(frozen=True)
class Format:
    """A wire format. `names` are what a config may call its converter, the one to recommend first."""

    names: tuple[str, ...]
    write: Callable[[Settings], WireFormat]
    read: Callable[[Settings, FindsSchemas], ReadsValues]
    doc: str
    keys: tuple[ConfigKey, ...] = ()
    schema_type: SchemaType | None = None
    """The type under which a schema is registered; None: nothing is registered."""
    single: str = ""
    """What the format writes, where that is a single value and not a record with fields."""
    is_strict: Callable[[Settings], bool] = bool
    """Whether a record with fields is refused; of no account for a format that writes those."""
    note: str = ""
    """What is to be known of a config that names it."""

    @property
    def name(self) -> str:
        return self.names[0]


def setting(name: str, default: Any, doc: str, **more: Any) -> ConfigKey:
    """Returns a key of a format, without the prefix that says whether it is of keys or of values."""
    kind: ConfigType = "BOOLEAN" if isinstance(default, bool) else "STRING"
    return ConfigKey(name, kind, default, **{"group": GROUP, "importance": "LOW", "doc": doc, **more})


def unreadable(text: str, error: Exception | None = None, **where: str | int) -> CdcError:
    """Returns the error of a record that is not of the format. Of what was raised only the class is told."""
    return CdcError(RECORD_UNREADABLE, f"{text}: {type(error).__name__}" if error else text, where=where or None)
