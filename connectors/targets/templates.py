"""Templates with `${topic}`, `${key.id}`, `${value.after.id}` and the like, filled from one record."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from cdcworker.connectors.api.record_target import TargetRecord
from cdcworker.connectors.record_sink.errors import RECORD_REFUSED
from cdcworker.connectors.record_sink.json_values import JsonValues
from cdcworker.connectors.transforms.data import ConnectSchema, DataError
from cdcworker.connectors.transforms.values import text_of
from cdcworker.schemas.errors import CdcError

_PLACE: Final = re.compile(r"\$\{([A-Za-z_][^${}:]{0,249})\}")
_DOTS: Final = frozenset((".", ".."))
_ROOTS: Final = ("id", "topic", "partition", "offset", "timestamp", "key", "value", "event", "header")
EXPECTED: Final = (
    "${topic}, ${partition}, ${offset}, ${timestamp}, ${id}, ${key}, ${key.FIELD}, ${value.FIELD} or ${header.NAME}"
)


def problem(text: str, *, whole: bool) -> str | None:
    """Returns what is wrong with a template; `whole` allows `${event}` and `${value}`, which are JSON."""
    for found in _PLACE.finditer(text):
        root, dot, rest = found[1].partition(".")
        if root not in _ROOTS or (dot and root not in ("key", "value", "header")) or (dot and not rest):
            return f"has a place that cannot be filled; expects {EXPECTED}"
        if not whole and (root == "event" or found[1] == "value"):
            return f"has a place that cannot be filled; expects {EXPECTED}"
    rest = _PLACE.sub("", text)
    return f"has a place that cannot be filled; expects {EXPECTED}" if "${" in rest else None


def has_places(text: str) -> bool:
    return _PLACE.search(text) is not None


def filled_with(text: str, filler: str) -> str:
    """Returns a template with the same text at all places."""
    return _PLACE.sub(filler, text)


@dataclass(frozen=True, slots=True)
class Found:
    """What stands at a place: a value and its schema, if it has one."""

    schema: ConnectSchema | None
    value: Any


def found_at(record: TargetRecord, place: str) -> Found:
    """Returns what stands at a place of a record. CdcError of kind `data` for a field that is not there."""
    root, _, rest = place.partition(".")
    plain = {"id": record.id, "topic": record.topic, "partition": record.partition, "offset": record.offset}
    plain["timestamp"] = record.timestamp_ms
    if root in plain:
        return Found(None, plain[root])
    if root == "header":
        value = next((each for each in reversed(record.headers) if each.key == rest), None)
        if value is None:
            raise _missing(place)
        return Found(value.schema, _readable(value.value))
    found = Found(*((record.key_schema, record.key) if root == "key" else (record.value_schema, record.value)))
    for name in rest.split(".") if rest else ():
        if not isinstance(found.value, Mapping) or name not in found.value:
            raise _missing(place)
        schema = found.schema.by_name.get(name) if found.schema is not None and found.schema.type == "struct" else None
        found = Found(schema, found.value[name])
    return found


def _readable(value: Any) -> Any:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _missing(place: str) -> CdcError:
    return CdcError(RECORD_REFUSED, "a template names a field that the record does not have", where={"place": place})


class TextTemplate:
    """Fills a template with texts, each as `encode` writes it."""

    def __init__(self, text: str, encode: Callable[[str], str], joint: str | None = None) -> None:
        """`joint` stands between the columns of a key that has several, and is percent-encoded where it is in one of them, so `encode`
        has to encode `%`. None: such a key has no text."""
        self._pieces = _PLACE.split(text)
        self._encode = encode
        self._joint = joint

    def fill(self, record: TargetRecord) -> str:
        """Returns the text. CdcError of kind `data` for a record that has none at a place."""
        pieces = self._pieces
        if len(pieces) == 1:
            return pieces[0]
        return "".join([self._at(record, piece) if number & 1 else piece for number, piece in enumerate(pieces)])

    def _at(self, record: TargetRecord, place: str) -> str:
        found = found_at(record, place)
        if place == "key" and isinstance(found.value, Mapping) and (self._joint is not None or len(found.value) == 1):
            texts = [self._text(found_at(record, f"key.{name}"), place) for name in found.value]
            if len(texts) == 1:
                # A key of one column is that column.
                return texts[0]
            joint = self._joint or ""
            return joint.join(text.replace(joint, quote(joint, safe="")) for text in texts)
        return self._text(found, place)

    def _text(self, found: Found, place: str) -> str:
        if found.value is None or isinstance(found.value, Mapping | list):
            raise CdcError(RECORD_REFUSED, "a template names what has no text", where={"place": place})
        try:
            return self._encode(text_of(found.value, found.schema))
        except (DataError, ValueError):
            raise CdcError(RECORD_REFUSED, "a value has no text", where={"place": place}) from None


class UrlTemplate(TextTemplate):
    """Fills a template with values that are encoded for an address. Everything but letters, digits and `-._~` is."""

    def __init__(self, text: str) -> None:
        super().__init__(text, lambda value: quote(value, safe=""))
        self._has_dots = not _DOTS.isdisjoint(text.split("/"))
        self._is_fixed = not has_places(text)

    def fill(self, record: TargetRecord) -> str:
        filled = super().fill(record)
        if not self._is_fixed and not self._has_dots and not _DOTS.isdisjoint(filled.partition("?")[0].split("/")):
            # Such a part changes the path that it stands in.
            raise CdcError(RECORD_REFUSED, "values are no part of an address")
        return filled

    def _text(self, found: Found, place: str) -> str:
        text = super()._text(found, place)
        if text in ("", *_DOTS):
            # These change the path that they stand in.
            raise CdcError(RECORD_REFUSED, "a value is no part of an address", where={"place": place})
        return text


class BodyTemplate:
    """Fills a template with JSON: text with quotes, numbers without."""

    def __init__(self, text: str, values: JsonValues, event: Callable[[TargetRecord], str]) -> None:
        self._text = text
        self._values = values
        self._event = event

    def fill(self, record: TargetRecord) -> str:
        def at(place: str) -> str:
            if place == "event":
                return self._event(record)
            found = found_at(record, place)
            return self._values.text(found.schema, found.value)

        return _PLACE.sub(lambda found: at(found[1]), self._text)
