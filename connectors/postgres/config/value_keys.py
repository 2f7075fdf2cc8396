"""Configuration keys of how values are written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from cdcworker.connectors.config.definition import ConfigKey, between, has_reference, one_of

BINARY: Final = ConfigKey(
    "binary.columns", default="auto", validator=one_of("auto", "never"), recommended=("auto", "never"), group="Values",
    importance="LOW", doc="auto: where the stream meets a row that the server cannot write as text (a bytea of more "
    "than half of a GiB), it is read in binary for as long as that takes. never: such a row halts the task.",
)  # fmt: skip


_FRACTIONS: Final = ("auto", "padded", "shortest")
_KEY_NANS: Final = ("auto", "number", "empty")
KEY_NAN: Final = ConfigKey(
    "key.nan.handling.mode", default="auto", validator=one_of(*_KEY_NANS), recommended=_KEY_NANS, group="Values",
    importance="LOW", doc="NaN of a numeric(p,s) in a key. number: the first number beyond the type, 10^(p-s), which all readers take. "
    "empty: empty bytes, as earlier versions wrote it, on which Connect's converters fail. auto: empty where the connector goes on at a "
    "position of such a version, so that keys keep their bytes; number otherwise. With out.of.range.handling.mode=exact it is always "
    "empty.",
)  # fmt: skip


def remarked_keys(config: Mapping[str, str]) -> Iterable[ConfigKey]:
    """Keys whose value in this config is taken with a remark: existing configs carry what means nothing here."""
    value = config.get(BINARY.name)
    if isinstance(value, str) and value not in BINARY.recommended and not has_reference(value):
        yield replace(BINARY, validator=None, note="The value means nothing here: auto is used.")


def value_keys() -> Iterable[ConfigKey]:
    def choice(name: str, default: str, *others: str) -> ConfigKey:
        values = (default, *others)
        return ConfigKey(name, default=default, validator=one_of(*values), recommended=values, group="Values")

    yield choice("decimal.handling.mode", "precise", "string", "double")
    yield choice(
        "time.precision.mode",
        "adaptive",
        "adaptive_time_microseconds",
        "connect",
        "isostring",
        "microseconds",
        "nanoseconds",
    )
    yield choice("binary.handling.mode", "bytes", "base64", "base64-url-safe", "hex")
    yield BINARY
    yield choice("hstore.handling.mode", "json", "map")
    yield choice("interval.handling.mode", "numeric", "string")
    yield ConfigKey(
        "money.fraction.digits", "INT", 2, validator=between(0, 10), group="Values", importance="LOW",
        doc="Fraction digits of money, as the database's lc_monetary has them.",
    )  # fmt: skip
    yield choice("composite.handling.mode", "text", "record")
    yield choice("bit.varying.handling.mode", "bits", "text")
    yield choice("unknown.type.handling.mode", "text", "bytes", "skip", "refuse")
    yield choice("out.of.range.handling.mode", "clamp", "exact")
    yield ConfigKey(
        "timestamptz.handling.mode", default="auto", validator=one_of(*_FRACTIONS), recommended=_FRACTIONS, group="Values",
        importance="LOW", doc="Fraction of a timestamptz. padded: as many digits as the column's precision, as Debezium writes them. "
        "shortest: no zeros at its end, as earlier versions wrote them. auto: shortest where the connector goes on at a position of "
        "such a version, so that keys keep their bytes; padded otherwise.",
    )  # fmt: skip
    yield KEY_NAN
