"""Converters and transforms of existing configurations: which there are, by their class names, and what form they ask for."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from cdcworker.connectors.config.common_keys import delivery_checks
from cdcworker.connectors.config.definition import PARSERS, ConfigKey, Validator, matches, nearest, one_of
from cdcworker.schemas import patterns
from cdcworker.schemas.record_format import (
    GROUP,
    AddedField,
    Deletes,
    FlatFormat,
    RecordFormat,
    RegexRoute,
    WireFormat,
)

AVRO: Final = "io.confluent.connect.avro.AvroConverter"
JSON: Final = "org.apache.kafka.connect.json.JsonConverter"
UNWRAP: Final = "io.debezium.transforms.ExtractNewRecordState"
ROUTER: Final = "org.apache.kafka.connect.transforms.RegexRouter"

CONVERTERS: Final = {
    AVRO: AVRO,
    "AvroConverter": AVRO,
    "avro": AVRO,
    "io.apicurio.registry.utils.converter.AvroConverter": AVRO,
    JSON: JSON,
    "JsonConverter": JSON,
    "json": JSON,
}
"""By what a config says; the first name of each is the one to recommend."""

TRANSFORMS: Final = {
    UNWRAP: UNWRAP,
    "ExtractNewRecordState": UNWRAP,
    "io.debezium.transforms.UnwrapFromEnvelope": UNWRAP,
    ROUTER: ROUTER,
    "RegexRouter": ROUTER,
}

_GROUP: Final = "Format"
NOT_AVAILABLE: Final = "Not available"
"""The group of keys that are refused by name."""
EXAMPLE: Final = {
    "transforms": "unwrap,route",
    "transforms.unwrap.type": UNWRAP,
    "transforms.route.type": ROUTER,
}
"""Names every transform, so that their keys can be shown."""
_REGISTRY: Final = "Not used: schemas are kept in the cluster, and every worker serves them as a Schema Registry."
_AVRO_ONLY: Final = "Not needed here: a schema is written as the table gives it."
_NULLS: Final = "Not applied: a null is always written as null."
_SETTINGS: Final = {
    "schema.registry.url": _REGISTRY,
    "schema.registry.": _REGISTRY,
    "apicurio.": _REGISTRY,
    "basic.auth.": _REGISTRY,
    "bearer.auth.": _REGISTRY,
    "proxy.": _REGISTRY,
    "ssl.": _REGISTRY,
    "auto.register.schemas": "Schemas are always registered.",
    "use.latest.version": _REGISTRY,
    "latest.compatibility.strict": _REGISTRY,
    "id.compatibility.strict": _REGISTRY,
    "normalize.schemas": _REGISTRY,
    "max.schemas.per.subject": _REGISTRY,
    "key.subject.name.strategy": "A subject is the topic's name with -key or -value.",
    "value.subject.name.strategy": "A subject is the topic's name with -key or -value.",
    "enhanced.avro.schema.support": _AVRO_ONLY,
    "connect.meta.data": _AVRO_ONLY,
    "scrub.invalid.names": _AVRO_ONLY,
    "allow.optional.map.keys": _AVRO_ONLY,
    "generalized.sum.type.support": _AVRO_ONLY,
    "flatten.singleton.unions": _AVRO_ONLY,
    "schemas.cache.config": _AVRO_ONLY,
    "schemas.cache.size": _AVRO_ONLY,
    "replace.null.with.default": _NULLS,
    "ignore.default.for.nullables": _NULLS,
}
"""Settings of converters that change nothing here, with the note that says why."""

ACCEPTED: Final = {
    **{f"{side}.converter.{name}": note for side in ("key", "value") for name, note in _SETTINGS.items()},
    "header.converter": "Headers are written as text.",
    "header.converter.*": "Headers are written as text.",
}

_PLAIN: Final = f"for readable text take {JSON} with schemas.enable=false"
_ELSEWHERE: Final = {
    "StringConverter": f"a row is a record with fields, of which it would make Struct{{id=1}}, which nobody can read back; {_PLAIN}",
    "ByteArrayConverter": f"a row is a record with fields, and it takes bytes only; {_PLAIN}",
    "ProtobufConverter": "take Avro, which carries the same schemas",
    "JsonSchemaConverter": f"take {JSON} with schemas.enable=true, which sends the schema along, or Avro",
    "CloudEventsConverter": "take the envelope as it is: its source block names the event",
    "ByLogicalTableRouter": f"to bring several tables into one topic take {ROUTER} with regex and replacement, where keys "
    "are unique over these tables (key.enforce.uniqueness=false); it adds no field to keys",
    "EventRouter": "read the table of the outbox as it is, and transform where the topic is read",
    "ExtractField$Key": "the key stays a record with its fields; take its field where the topic is read",
    "ExtractField$Value": "the value stays a record with its fields; take its field where the topic is read",
    "ValueToKey": "message.key.columns chooses the columns of the key",
    "TimestampRouter": "a topic belongs to one table, whatever the time is",
    "Filter": "leave tables and columns out with table.include.list and column.exclude.list, or filter where the topic is read",
    "ReplaceField$Value": "leave columns out with column.exclude.list",
    "MaskField$Value": "column.mask.with.*.chars and column.mask.hash.* hide values",
}
"""Converters and transforms that existing configs name and that there are not, by what to do instead."""
_SAME: Final = 0.92
"""How alike class names are that differ by a slip only: those of one package are alike by their prefix."""
_AVRO_NOTE: Final = "Avro is framed as Confluent's; its schema ids are those of the cluster's own registry."


# -- converters -------------------------------------------------------------------------------------------------------


def _known_converter(value: str) -> str | None:
    if value in CONVERTERS:
        return None
    near = nearest(value, CONVERTERS, _SAME)
    hint = _ELSEWHERE.get(value.rpartition(".")[2]) or (
        f"did you mean {near}?" if near else "a row is a record with fields, which only these two can write"
    )
    return f"names a converter that is not available; expects {JSON} or {AVRO}: {hint}"


def converter_keys(config: Mapping[str, str] | None = None) -> Iterable[ConfigKey]:
    for side in ("key", "value"):
        is_avro = CONVERTERS.get(_text(config or {}, f"{side}.converter")) == AVRO
        yield ConfigKey(
            f"{side}.converter", "CLASS", AVRO, group=_GROUP, validator=_known_converter, recommended=(AVRO, JSON),
            note=_AVRO_NOTE if is_avro else "", doc=f"How {side}s are written: Avro in Confluent's framing, or Connect's JSON.",
        )  # fmt: skip
        yield ConfigKey(
            f"{side}.converter.schemas.enable", "BOOLEAN", True, group=_GROUP,
            doc="Of the JsonConverter: an object with schema and payload.",
        )  # fmt: skip
        yield ConfigKey(
            f"{side}.converter.decimal.format", default="BASE64", group=_GROUP, importance="LOW",
            validator=one_of("BASE64", "NUMERIC"), recommended=("BASE64", "NUMERIC"),
            doc="Of the JsonConverter: decimals as base64 of their bytes, or as numbers.",
        )  # fmt: skip


def _wire(config: Mapping[str, str], side: str) -> WireFormat:
    name = config.get(f"{side}.converter", AVRO).strip()
    if CONVERTERS.get(name, AVRO) == AVRO:
        return WireFormat()
    return WireFormat(
        json=True,
        schemas=_flag(config, f"{side}.converter.schemas.enable", True),
        numeric=config.get(f"{side}.converter.decimal.format", "").strip() == "NUMERIC",
    )


def _flag(config: Mapping[str, str], name: str, default: bool) -> bool:
    text = config.get(name)
    return default if text is None else bool(PARSERS["BOOLEAN"](text))


# -- transforms -------------------------------------------------------------------------------------------------------

TRANSFORMS_MAX: Final = 20
"""Names of transforms: each has keys of its own, which are judged and shown."""


def _few(names: list[str]) -> str | None:
    return (
        f"names {len(names)} transforms; at most {TRANSFORMS_MAX} may be named" if len(names) > TRANSFORMS_MAX else None
    )


TRANSFORMS_KEY: Final = ConfigKey(
    "transforms", "LIST", [], group=_GROUP, recommended=("unwrap",), validator=_few,
    doc="Names of transforms; `transforms.<name>.type` is ExtractNewRecordState or RegexRouter, each at most once.",
)  # fmt: skip
_NEW_MODES: Final[dict[str, tuple[Deletes, bool]]] = {
    "drop": ("drop", False),
    "tombstone": ("tombstone", False),
    "delete-to-tombstone": ("tombstone", False),
    "rewrite": ("rewrite", False),
    "rewrite-with-tombstone": ("rewrite", True),
}
_OLD_MODES: Final[dict[str, Deletes]] = {"drop": "drop", "rewrite": "rewrite", "none": "tombstone"}


def format_keys(config: Mapping[str, str]) -> Iterable[ConfigKey]:
    """The keys that depend on the config: those of a transform begin with the name that it is given."""
    yield from converter_keys(config)
    kinds: dict[str, str] = {}
    for name in _names(config):
        type_key = f"transforms.{name}.type"
        kind = TRANSFORMS.get(_text(config, type_key))
        other = kinds.get(kind or "")
        yield ConfigKey(
            type_key, "CLASS", required=True, group=_GROUP, validator=_transform(other), recommended=(UNWRAP, ROUTER),
            doc=f"What the transform {name} is.",
        )  # fmt: skip
        if kind is not None and other is None:
            kinds[kind] = name
            yield from (_unwrap_keys if kind == UNWRAP else _router_keys)(f"transforms.{name}.")
        else:  # its type is the problem, not its settings
            yield from (ConfigKey(key) for key in config if key.startswith(f"transforms.{name}.") and key != type_key)
    named = tuple(f"transforms.{name}." for name in _names(config))
    is_judged = bool(named) or not _text(config, "transforms")
    for key in config:
        if key.startswith("transforms.") and not key.startswith(named) and is_judged:
            yield ConfigKey(key, group=NOT_AVAILABLE, validator=_unnamed)


def _unnamed(_: Any) -> str:
    return "belongs to no transform that the key transforms names"


def _text(config: Mapping[str, str], name: str, default: str = "") -> str:
    """As it may be given before it is validated: not even a string for sure."""
    value = config.get(name, default)
    return value.strip() if isinstance(value, str) else default


def _names(config: Mapping[str, str]) -> Sequence[str]:
    """Returns the names that are judged: none where there are too many."""
    names = PARSERS["LIST"](_text(config, "transforms"))
    return [] if _few(names) else list(dict.fromkeys(names))


def _transform(other: str | None) -> Validator:
    def check(value: str) -> str | None:
        if value in TRANSFORMS:
            return f"is the same as that of transforms.{other}: one of a kind is applied" if other else None
        near = nearest(value, TRANSFORMS, _SAME)
        hint = _ELSEWHERE.get(value.rpartition(".")[2]) or (
            f"did you mean {near}?" if near else "leave it out and transform where the topic is read"
        )
        return f"names a transform that is not available; expects {UNWRAP} or {ROUTER}: {hint}"

    return check


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


def _unwrap_keys(at: str) -> Iterable[ConfigKey]:
    def key(name: str, type: Any = "STRING", default: Any = None, **more: Any) -> ConfigKey:
        return ConfigKey(at + name, type, default, group=_GROUP, **more)

    modes = tuple(_NEW_MODES)
    yield key("delete.tombstone.handling.mode", validator=one_of(*modes), recommended=modes, doc=_MODES_DOC)
    yield key("delete.handling.mode", validator=one_of(*_OLD_MODES), recommended=tuple(_OLD_MODES), doc=_OLD_DOC)
    yield key("drop.tombstones", "BOOLEAN", doc=_OLD_DOC)
    for kind in ("fields", "headers"):
        yield key(
            f"add.{kind}", "LIST", [], validator=_added("__"), doc=f"Fields of the envelope that are added as {kind}."
        )
        yield key(f"add.{kind}.prefix", default="__", validator=_PREFIX, doc="What their names begin with.")
    yield key("replace.null.with.default", "BOOLEAN", True, note=_NULLS)
    yield _absent(at + "route.by.field", "a topic belongs to one table")
    for name in ("drop.fields.header.name", "drop.fields.from.key", "drop.fields.keep.schema.compatible"):
        yield _absent(at + name, "leave columns out with column.exclude.list")
    for name in ("predicate", "negate"):
        yield _absent(at + name, "a transform is applied to every record")


_MODES_DOC: Final = "What becomes of a deletion: nothing, a tombstone, or the row with __deleted."
_OLD_DOC: Final = "Former key for delete.tombstone.handling.mode, which counts where both are set."


def _router_keys(at: str) -> Iterable[ConfigKey]:
    yield ConfigKey(f"{at}regex", required=True, group=_GROUP, validator=_java_regex, doc="A whole topic name.")
    yield ConfigKey(
        f"{at}replacement",
        required=True,
        group=_GROUP,
        validator=_replacement,
        topics="template",
        doc="The new name; $1 is a group.",
    )
    for name in ("predicate", "negate"):
        yield _absent(at + name, "a transform is applied to every record")


def _java_regex(value: str) -> str | None:
    return patterns.problem(value)


def _replacement(value: str) -> str | None:
    rest = GROUP.sub("", value)
    return None if re.fullmatch(r"[A-Za-z0-9._\-]*", rest) else "expects characters of a topic name, and $1 for groups"


def format_checks(source_fields: Iterable[str]) -> Callable[[Mapping[str, Any]], Iterable[tuple[str, str]]]:
    """Looks at several keys together: fields that are not there, groups that the pattern does not have."""
    known = frozenset(source_fields)

    def check(config: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
        yield from delivery_checks(config)
        for name, value in config.items():
            if name.startswith("transforms.") and name.endswith((".add.fields", ".add.headers")):
                for item in value:
                    added = AddedField.parse(item, "")
                    if added.struct == "source" and added.field not in known:
                        near = nearest(added.field, known)
                        yield name, f"names no field of source{f'; did you mean {near}?' if near else ''}"
            elif name.startswith("transforms.") and name.endswith(".regex"):
                yield from _check_route(name, value, config[name.removesuffix("regex") + "replacement"])

    return check


def _check_route(name: str, regex: str, replacement: str) -> Iterable[tuple[str, str]]:
    pattern = patterns.required(regex)
    for group, number in GROUP.findall(replacement):
        if (group and group not in pattern.names) or (number and int(number) > pattern.groups):
            yield name.removesuffix("regex") + "replacement", "names a group that regex does not have"


def _flat(config: Mapping[str, str], at: str, *, tombstones: bool) -> FlatFormat:
    def text(name: str, default: str = "") -> str:
        return config.get(at + name, default).strip()

    mode, old = text("delete.tombstone.handling.mode"), at + "drop.tombstones"
    deletes, trailing = _NEW_MODES[mode or "tombstone"]
    if not mode and (text("delete.handling.mode") or old in config):
        deletes = _OLD_MODES[text("delete.handling.mode") or "drop"]
        trailing = not _flag(config, old, True)
    added = {
        kind: tuple(
            AddedField.parse(item, text(f"add.{kind}.prefix", "__")) for item in PARSERS["LIST"](text(f"add.{kind}"))
        )
        for kind in ("fields", "headers")
    }
    return FlatFormat(deletes, trailing and tombstones, added["fields"], added["headers"])


def format_of(config: Mapping[str, str]) -> RecordFormat:
    """The form of a validated config's records; what is not known, or another source's, leaves the default."""
    flat, routes = None, []
    tombstones = _flag(config, "tombstones.on.delete", True)
    for name in _names(config):
        at = f"transforms.{name}."
        kind = TRANSFORMS.get(_text(config, at + "type"))
        if kind == UNWRAP:
            flat = _flat(config, at, tombstones=tombstones)
        elif kind == ROUTER:
            routes.append(
                RegexRoute(patterns.required(config[at + "regex"].strip()), config[at + "replacement"].strip())
            )
    skipped = {name.lower() for name in PARSERS["LIST"](_text(config, "skipped.operations"))}
    # A truncate of one table would empty what readers have of all tables of the topic.
    return RecordFormat(
        _wire(config, "key"), _wire(config, "value"), flat, tuple(routes), shared=bool(routes) and "t" in skipped
    )
