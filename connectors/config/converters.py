"""Converters of existing configurations: which there are, by their class names, and what form they ask for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from cdcworker.connectors.config.definition import PARSERS, ConfigKey, nearest, one_of
from cdcworker.schemas.record_format import WireFormat

AVRO: Final = "io.confluent.connect.avro.AvroConverter"
JSON: Final = "org.apache.kafka.connect.json.JsonConverter"

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

GROUP: Final = "Format"
NOT_AVAILABLE: Final = "Not available"
"""The group of keys that are refused by name."""
_REGISTRY: Final = "Not used: schemas are kept in the cluster, and every worker serves them as a Schema Registry."
_AVRO_ONLY: Final = "Not needed here: a schema is written as the table gives it."
NULLS: Final = "Not applied: a null is always written as null."
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
    "replace.null.with.default": NULLS,
    "ignore.default.for.nullables": NULLS,
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
}
"""Converters that existing configs name and that there are not, by what to do instead."""
SAME: Final = 0.92
"""How alike class names are that differ by a slip only: those of one package are alike by their prefix."""
_AVRO_NOTE: Final = "Avro is framed as Confluent's; its schema ids are those of the cluster's own registry."


def _known_converter(value: str) -> str | None:
    if value in CONVERTERS:
        return None
    near = nearest(value, CONVERTERS, SAME)
    hint = _ELSEWHERE.get(value.rpartition(".")[2]) or (
        f"did you mean {near}?" if near else "a row is a record with fields, which only these two can write"
    )
    return f"names a converter that is not available; expects {JSON} or {AVRO}: {hint}"


def converter_keys(config: Mapping[str, str] | None = None) -> Iterable[ConfigKey]:
    for side in ("key", "value"):
        is_avro = CONVERTERS.get(text_of(config or {}, f"{side}.converter")) == AVRO
        yield ConfigKey(
            f"{side}.converter", "CLASS", AVRO, group=GROUP, validator=_known_converter, recommended=(AVRO, JSON),
            note=_AVRO_NOTE if is_avro else "", doc=f"How {side}s are written: Avro in Confluent's framing, or Connect's JSON.",
        )  # fmt: skip
        yield ConfigKey(
            f"{side}.converter.schemas.enable", "BOOLEAN", True, group=GROUP,
            doc="Of the JsonConverter: an object with schema and payload.",
        )  # fmt: skip
        yield ConfigKey(
            f"{side}.converter.decimal.format", default="BASE64", group=GROUP, importance="LOW",
            validator=one_of("BASE64", "NUMERIC"), recommended=("BASE64", "NUMERIC"),
            doc="Of the JsonConverter: decimals as base64 of their bytes, or as numbers.",
        )  # fmt: skip


def wire_of(config: Mapping[str, str], side: str) -> WireFormat:
    """Returns how a validated config writes its keys or values."""
    name = config.get(f"{side}.converter", AVRO).strip()
    if CONVERTERS.get(name, AVRO) == AVRO:
        return WireFormat()
    return WireFormat(
        json=True,
        schemas=flag(config, f"{side}.converter.schemas.enable", True),
        numeric=config.get(f"{side}.converter.decimal.format", "").strip() == "NUMERIC",
    )


def flag(config: Mapping[str, str], name: str, default: bool) -> bool:
    """Returns a boolean of a validated config."""
    text = config.get(name)
    return default if text is None else bool(PARSERS["BOOLEAN"](text))


def text_of(config: Mapping[str, str], name: str, default: str = "") -> str:
    """Returns a value as it may be given before it is validated: not even a string for sure."""
    value = config.get(name, default)
    return value.strip() if isinstance(value, str) else default
