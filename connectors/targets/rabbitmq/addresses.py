"""Where RabbitMQ is: the servers that a config names, and its virtual host."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from cdcworker.connectors.config.allowed_hosts import host_list

PLACE_KEY: Final = "rabbitmq.addresses"
PORT: Final = 5672
TLS_PORT: Final = 5671
EXPECTED: Final = "expects HOST:PORT, amqp://HOST:PORT or amqps://HOST:PORT, without a login, separated by commas"
_ADDRESS: Final = re.compile(
    r"(?P<scheme>amqps?://)?(?P<host>\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,253})(?::(?P<port>[0-9]{1,5}))?/?"
)


class Place(NamedTuple):
    host: str
    port: int


def is_secure(config: Mapping[str, Any]) -> bool:
    """Returns whether connections have TLS."""
    return (
        bool(config["rabbitmq.ssl.enabled"])
        or config["rabbitmq.security.protocol"] == "SSL"
        or any(text.startswith("amqps://") for text in config[PLACE_KEY])
    )


def places_of(config: Mapping[str, Any]) -> list[Place]:
    """Returns the servers that a parsed config names."""
    usual = TLS_PORT if is_secure(config) else PORT
    if config[PLACE_KEY]:
        found = (_ADDRESS.fullmatch(text) for text in config[PLACE_KEY])
        return [Place(one["host"].strip("[]"), int(one["port"] or usual)) for one in found if one]
    return [Place(config["rabbitmq.host"].strip("[]"), config["rabbitmq.port"] or usual)]


def addresses_problem(value: list[str]) -> str | None:
    """Returns what is wrong with a list of addresses."""
    for text in value:
        found = _ADDRESS.fullmatch(text)
        if not found or (found["port"] is not None and not 0 < int(found["port"]) < 65_536):
            return EXPECTED
        if problem := host_list(found["host"].strip("[]")):
            return problem
    return None
