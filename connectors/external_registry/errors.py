"""What goes wrong with an existing schema registry."""

from __future__ import annotations

from typing import Final

from cdcworker.schemas.errors import declare

UNAVAILABLE: Final = declare(
    "registry.unavailable",
    "transient",
    "The schema registry of the config does not answer",
    "It is asked again. Look whether it runs, and whether this worker reaches the address of schema.registry.url.",
)
REFUSED: Final = declare(
    "registry.refused",
    "config",
    "The schema registry of the config does not take requests of this connector",
    "Correct the login (basic.auth.*, bearer.auth.*), the TLS keys (schema.registry.ssl.*) or the address of the converter.",
)
INCOMPATIBLE: Final = declare(
    "registry.incompatible",
    "data",
    "The schema registry refuses a schema as incompatible with the versions of its subject",
    "Set the subject's compatibility to NONE, or to what the change of the table allows, and ask for a snapshot of the table; or"
    " route the table to another topic.",
)
NOT_REGISTERED: Final = declare(
    "registry.not_registered",
    "data",
    "The schema registry does not have a schema that is to be written, and auto.register.schemas is false",
    "Register the schema under the subject that is named, then ask for a snapshot of the table; or let the converter register it.",
)
INVALID: Final = declare(
    "registry.schema_invalid",
    "data",
    "The schema registry does not take a schema",
    "Look at the registry's own log. With references or a normal form of its own, register the schema there and set"
    " auto.register.schemas=false.",
)
