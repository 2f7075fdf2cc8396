"""Configuration keys of how values are written."""

from __future__ import annotations

from collections.abc import Iterable

from cdcworker.connectors.config import ConfigKey, between, one_of


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
    yield choice("hstore.handling.mode", "json", "map")
    yield choice("interval.handling.mode", "numeric", "string")
    yield ConfigKey(
        "money.fraction.digits", "INT", 2, validator=between(0, 10), group="Values", importance="LOW",
        doc="Fraction digits of money, as the database's lc_monetary has them.",
    )  # fmt: skip
    yield choice("composite.handling.mode", "text", "record")
    yield choice("unknown.type.handling.mode", "text", "bytes", "skip", "refuse")
