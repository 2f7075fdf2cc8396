"""Keys of Debezium's PostgreSQL connector that existing configurations carry: accepted with a note, or refused by name."""

from __future__ import annotations

from typing import Any, Final

from cdcworker.connectors.capture.config import debezium_keys as debezium
from cdcworker.connectors.capture.config.debezium_keys import RETRY, UNNEEDED, default_only_keys, refused, refused_keys
from cdcworker.connectors.config.definition import ConfigKey, Validator

ACCEPTED: Final[dict[str, str]] = {
    **debezium.ACCEPTED,
    "slot.max.retries": RETRY,
    "slot.retry.delay.ms": RETRY,
    "lsn.flush.mode": "Confirmed after the Kafka transaction only.",
    "lsn.flush.timeout.ms": UNNEEDED,
    "lsn.flush.timeout.action": UNNEEDED,
    "flush.lsn.source": "Confirmed after the Kafka transaction only.",
    "offset.mismatch.strategy": "A slot and a position that do not fit halt the task.",
    "xmin.fetch.interval.ms": UNNEEDED,
    "schema.refresh.mode": "Relations are compared on every change of the stream.",
    "status.update.interval": UNNEEDED,
    "create.slot.command.timeout": "Its name here is slot.creation.timeout.ms, in milliseconds.",
}


def _off(reason: str) -> Validator:
    def check(value: Any) -> str | None:
        return f"is not available: {reason}" if value is True else None

    return check


REFUSED: Final[tuple[ConfigKey, ...]] = (
    *refused_keys(),
    *default_only_keys(),
    refused("database.sslfactory", "TLS is libpq's; see database.sslmode and database.sslrootcert"),
    refused("slot.stream.params", "stream parameters are fixed; see replication.origin"),
    refused("database.initial.statements", "session settings fix the text forms"),
    ConfigKey(
        "slot.two.phase",
        "BOOLEAN",
        False,
        validator=_off("prepared transactions are handed on when they commit"),
        importance="LOW",
        group="Not available",
    ),
)
