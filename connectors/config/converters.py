"""What existing configurations say to converters and that needs nothing here; `connectors/formats` has the converters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from cdcworker.connectors.config.definition import PARSERS

Side = Literal["key", "value"]
SIDES: Final[tuple[Side, ...]] = ("key", "value")
GROUP: Final = "Format"
NOT_AVAILABLE: Final = "Not available"
"""The group of keys that are refused by name."""
_REGISTRY: Final = "Not used: schemas are kept in the cluster, or in the registry that schema.registry.url names."
_AVRO_ONLY: Final = "Not needed here: a schema is written as the table gives it."
NULLS: Final = "Not applied: a null is always written as null."
_SETTINGS: Final = {
    "schema.registry.ssl.": "Not used: TLS is given as PEM text, by schema.registry.ssl.truststore.certificates and the like.",
    "schema.registry.": _REGISTRY,
    "apicurio.": _REGISTRY,
    "basic.auth.": _REGISTRY,
    "bearer.auth.": _REGISTRY,
    "proxy.": _REGISTRY,
    "ssl.": _REGISTRY,
    "latest.compatibility.strict": _REGISTRY,
    "id.compatibility.strict": _REGISTRY,
    "max.schemas.per.subject": _REGISTRY,
    "key.subject.name.strategy": "Of the other converter.",
    "value.subject.name.strategy": "Of the other converter.",
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

SAME: Final = 0.92
"""How alike class names are that differ by a slip only: those of one package are alike by their prefix."""


def flag(config: Mapping[str, str], name: str, default: bool) -> bool:
    """Returns a boolean of a validated config."""
    text = config.get(name)
    return default if text is None else bool(PARSERS["BOOLEAN"](text))


def text_of(config: Mapping[str, str], name: str, default: str = "") -> str:
    """Returns a value as it may be given before it is validated: not even a string for sure."""
    value = config.get(name, default)
    return value.strip() if isinstance(value, str) else default
