"""ExtractNewRecordState: the transform that the encoder itself knows, as a part of the record's form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from cdcworker.connectors.config.converters import NOT_AVAILABLE, NULLS, flag
from cdcworker.connectors.config.definition import PARSERS, ConfigKey, Validator, matches, nearest, one_of
from cdcworker.schemas.record_format import AddedField, Deletes, FlatFormat

UNWRAP: Final = "io.debezium.transforms.ExtractNewRecordState"
_NEW_MODES: Final[dict[str, tuple[Deletes, bool]]] = {
    "drop": ("drop", False),
    "tombstone": ("tombstone", False),
    "delete-to-tombstone": ("tombstone", False),
    "rewrite": ("rewrite", False),
    "rewrite-with-tombstone": ("rewrite", True),
}
_OLD_MODES: Final[dict[str, Deletes]] = {"drop": "drop", "rewrite": "rewrite", "none": "tombstone"}


def _absent(name: str, reason: str) -> ConfigKey:
    return ConfigKey(
        name, group=NOT_AVAILABLE, validator=lambda value: f"is not available: {reason}" if value else None
    )


def _added(prefix: str) -> Validator:
    def check(value: Sequence[str]) -> str | None:
        for number, item in enumerate(value, 1):
            try:
                AddedField.parse(item, prefix)
            except ValueError as exc:
                return f"item {number} {exc}; expects op, lsn, source.ts_ms, transaction.id or the like"
        return None

    return check


_PREFIX: Final = matches(r"[A-Za-z0-9_.\-]{0,100}", "letters, digits, underscore, dot and hyphen")


def unwrap_keys(at: str, group: str) -> Iterable[ConfigKey]:
    """Yields the keys of ExtractNewRecordState; `at` is what they begin with."""

    def key(name: str, type: Any = "STRING", default: Any = None, **more: Any) -> ConfigKey:
        return ConfigKey(at + name, type, default, group=group, **more)

    modes = tuple(_NEW_MODES)
    yield key("delete.tombstone.handling.mode", validator=one_of(*modes), recommended=modes, doc=_MODES_DOC)
    yield key("delete.handling.mode", validator=one_of(*_OLD_MODES), recommended=tuple(_OLD_MODES), doc=_OLD_DOC)
    yield key("drop.tombstones", "BOOLEAN", doc=_OLD_DOC)
    for kind in ("fields", "headers"):
        yield key(
            f"add.{kind}", "LIST", [], validator=_added("__"), doc=f"Fields of the envelope that are added as {kind}."
        )
        yield key(f"add.{kind}.prefix", default="__", validator=_PREFIX, doc="What their names begin with.")
    yield key("replace.null.with.default", "BOOLEAN", True, note=NULLS)
    yield _absent(at + "route.by.field", "a topic belongs to one table")
    for name in ("drop.fields.header.name", "drop.fields.from.key", "drop.fields.keep.schema.compatible"):
        yield _absent(at + name, "leave columns out with column.exclude.list")
    for name in ("predicate", "negate"):
        yield _absent(at + name, "ExtractNewRecordState is applied to every record")


_MODES_DOC: Final = "What becomes of a deletion: nothing, a tombstone, or the row with __deleted."
_OLD_DOC: Final = "Former key for delete.tombstone.handling.mode, which counts where both are set."


def check_added(name: str, value: Iterable[str], known: Iterable[str]) -> Iterable[tuple[str, str]]:
    """Yields what is wrong with fields that are added, of which `known` are those of the source block."""
    fields = frozenset(known)
    for item in value:
        added = AddedField.parse(item, "")
        if added.struct == "source" and added.field not in fields:
            near = nearest(added.field, fields)
            yield name, f"names no field of source{f'; did you mean {near}?' if near else ''}"


def flat_of(config: Mapping[str, str], at: str, *, tombstones: bool) -> FlatFormat:
    """Returns the form of flat rows that a validated config asks for."""

    def text(name: str, default: str = "") -> str:
        return config.get(at + name, default).strip()

    mode, old = text("delete.tombstone.handling.mode"), at + "drop.tombstones"
    deletes, trailing = _NEW_MODES[mode or "tombstone"]
    if not mode and (text("delete.handling.mode") or old in config):
        deletes = _OLD_MODES[text("delete.handling.mode") or "drop"]
        trailing = not flag(config, old, True)
    added = {
        kind: tuple(
            AddedField.parse(item, text(f"add.{kind}.prefix", "__")) for item in PARSERS["LIST"](text(f"add.{kind}"))
        )
        for kind in ("fields", "headers")
    }
    return FlatFormat(deletes, trailing and tombstones, added["fields"], added["headers"])
