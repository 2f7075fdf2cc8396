"""Keys of Debezium's MySQL and MariaDB connectors that existing configurations carry: accepted with a note, or refused by name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from cdcworker.connectors.capture.config import debezium_keys as debezium
from cdcworker.connectors.capture.config.debezium_keys import RETRY, UNNEEDED, default_only_keys, refused, refused_keys
from cdcworker.connectors.config.definition import ConfigKey

NAMES: Final = ("database", "table", "column")
"""What the include and exclude lists name; a database holds tables."""
_READER = "The binary log is read by this product's own reader."
ACCEPTED: Final[dict[str, str]] = {
    **{name: note for name, note in debezium.ACCEPTED.items() if name != "include.schema.changes"},
    "database.jdbc.driver": _READER,
    "database.protocol": _READER,
    "database.connectionTimeZone": "Times are read in UTC, whatever the server's zone is.",
    "connection.time.zone": "Times are read in UTC, whatever the server's zone is.",
    "driver.": _READER,
    "connect.keep.alive": "A connection that is lost is opened again, and reading resumes at the position.",
    "connect.keep.alive.interval.ms": UNNEEDED,
    "use.nongraceful.disconnect": UNNEEDED,
    "binlog.buffer.size": "Not needed here: transactions that were rolled back are not in the log.",
    "min.row.count.to.stream.results": "Rows are read in chunks; see snapshot.chunk.max.bytes.",
    "enable.time.adjuster": "The server has completed years of two digits before they are logged.",
    "snapshot.new.tables": "New tables are loaded beside the stream.",
    "schema.history.internal": "Needs no history of schemas: the log and the catalog say what tables look like.",
    "source.connection.retry.": RETRY,
}


def _default_only(name: str, default: str, reason: str) -> ConfigKey:
    def check(value: object) -> str | None:
        return None if value == default else f"is not available with this value: {reason}"

    return ConfigKey(
        name, default=default, importance="LOW", group="Accepted with its default only", has_effect=False, recommended=(default,),
        validator=check, doc=f"Only {default}: {reason}.",
    )  # fmt: skip


def fixed_keys() -> Iterable[ConfigKey]:
    """Keys that no configuration may set, or only to Debezium's default: their effect would be missed."""
    yield from refused_keys(NAMES)
    yield from default_only_keys()
    for name in ("event.deserialization.failure.handling.mode", "inconsistent.schema.handling.mode"):
        yield _default_only(
            name, "fail", "no event is skipped; table.failure.policy holds its table back, or halts the task"
        )
    for side in ("keystore", "truststore"):
        text = "certificates are files in PEM; see database.sslrootcert"
        yield refused(f"database.ssl.{side}", text)
        yield refused(f"database.ssl.{side}.password", text)
    yield refused("database.initial.statements", "session settings fix the forms of values")
    for name in ("gtid.source.includes", "gtid.source.excludes"):
        yield refused(
            name, "the position holds the transactions of every source, so that none is missed on another server"
        )
    yield ConfigKey(
        "gtid.source.filter.dml.events", "BOOLEAN", True, has_effect=False, importance="LOW", group="Not available",
        note="Only of gtid.source.includes and gtid.source.excludes.",
    )  # fmt: skip
