"""The converters of a config: which formats it asks for, their keys, and whether what is written fits them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from cdcworker.connectors.config.converters import SAME, SIDES, Side, text_of
from cdcworker.connectors.config.definition import PARSERS, ConfigKey, nearest
from cdcworker.connectors.converters import shipped
from cdcworker.connectors.converters.plugin_formats import plugin_formats
from cdcworker.connectors.converters.shipped import DEFAULT
from cdcworker.connectors.formats.connect_json import JSON
from cdcworker.connectors.formats.format import GROUP, FindsSchemas, Format, ReadsValues, Settings
from cdcworker.connectors.formats.registry_keys import registry_keys
from cdcworker.schemas.record_format import WireFormat

PLUGINS: Final = plugin_formats()
"""Those of other distributions that the operator allows."""
FORMATS: Final = (*shipped.FORMATS, *PLUGINS.formats.values())
BY_NAME: Final = {**PLUGINS.formats, **shipped.BY_NAME}
_USUAL: Final = ("schemas.enable", "decimal.format")
RECOMMENDED: Final = tuple(each.name for each in FORMATS)


def format_named(config: Mapping[str, Any], side: Side) -> Format:
    """Returns the format that a config names for its keys or its values; one that is not known is the default."""
    return BY_NAME.get(text_of(config, f"{side}.converter"), DEFAULT)


def settings_of(config: Mapping[str, Any], side: Side) -> Settings:
    """Returns what a validated config says to its format, whether its values are parsed already or not."""
    return {
        key.name: _setting(key, config.get(f"{side}.converter.{key.name}")) for key in format_named(config, side).keys
    }


def _setting(key: ConfigKey, given: Any) -> Any:
    if given is None:
        return key.default
    return PARSERS[key.type](given) if isinstance(given, str) else given


def wire_of(config: Mapping[str, Any], side: Side) -> WireFormat:
    """Returns how a validated config writes its keys or values."""
    return format_named(config, side).write(settings_of(config, side))


def reader_of(config: Mapping[str, Any], side: Side, schemas: FindsSchemas) -> ReadsValues:
    """Returns what reads the keys or values that are written as a validated config says."""
    return format_named(config, side).read(settings_of(config, side), schemas)


# Keys


def _known_converter(value: str) -> str | None:
    if value in BY_NAME:
        return None
    near = nearest(value, BY_NAME, SAME)
    hint = f"did you mean {near}?" if near else "see the record formats in the documentation"
    return (
        f"names a converter that is not available; expects {', '.join(RECOMMENDED[:2])} or another that ships: {hint}"
    )


def converter_keys(config: Mapping[str, str] | None = None) -> Iterable[ConfigKey]:
    """Yields the keys of both converters. A setting of another format than the named one is known where the config has it, and
    its note says that it has no effect. Without a config those that most configs have are yielded."""
    for side in SIDES:
        named = format_named(config or {}, side)
        yield ConfigKey(
            f"{side}.converter", "CLASS", DEFAULT.name, group=GROUP, validator=_known_converter, recommended=RECOMMENDED,
            note=named.note, doc=f"How {side}s are written and read: the name of a converter of Kafka Connect, Confluent or Debezium.",
        )  # fmt: skip
        given = [key.removeprefix(f"{side}.converter.") for key in config] if config else _USUAL
        yield from _settings(side, named, frozenset(given))
        yield from registry_keys(side)


def _settings(side: Side, named: Format, given: Collection[str]) -> Iterator[ConfigKey]:
    """Yields the settings of the named format, and of others those that are given; of two with one name the former counts."""
    made: dict[str, ConfigKey] = {}
    for each in (named, *FORMATS):
        of = f"Of the {each.name.rpartition('.')[2]}: "
        for key in each.keys:
            if each is not named and key.name not in given:
                continue
            doc = of + key.doc[:1].lower() + key.doc[1:]
            note = key.note if each is named else f"Without effect: it is a setting of {each.name}."
            made.setdefault(key.name, replace(key, name=f"{side}.converter.{key.name}", doc=doc, note=note))
    yield from made.values()


# Checks


def single_checks(config: Mapping[str, Any], singled: Collection[Side]) -> Iterator[tuple[str, str]]:
    """Yields what cannot be written in the formats of a source: a row is a record with fields, unless a transform leaves a
    single value of it. `singled` are the sides of which one does."""
    for side in SIDES:
        named = format_named(config, side)
        if not named.single:
            continue
        name, at = named.name.rpartition(".")[2], f"{side}.converter"
        if side not in singled:
            kind = "Key" if side == "key" else "Value"
            yield (
                at,
                (
                    f"names the {name}, which writes {named.single}, and a row is a record with fields: put "
                    f"org.apache.kafka.connect.transforms.ExtractField${kind} before it, or for readable text take {JSON} with "
                    "schemas.enable=false"
                ),
            )
            continue
        yield from _own_records(config, side, named)


def _own_records(config: Mapping[str, Any], side: Side, named: Format) -> Iterator[tuple[str, str]]:
    """Yields which records of the source's own could not be written: they have fields, and pass no transform."""
    settings = settings_of(config, side)
    if not named.is_strict(settings):
        return
    for key in ("heartbeat.interval.ms", "provide.transaction.metadata"):
        if config.get(key):
            yield (
                key,
                (
                    f"makes records with fields, which {side}.converter cannot write: io.debezium.converters.BinaryDataConverter "
                    "with delegate.converter.type can; or leave them out"
                ),
            )
