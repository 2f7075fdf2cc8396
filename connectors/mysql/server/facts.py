"""What kind of server it is and how it is set, as far as reading it depends on that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from cdcworker.connectors.mysql_client.login import version_of

if TYPE_CHECKING:
    from cdcworker.connectors.mysql_client.client import MySqlConnection

_NAMES: Final = (
    *(
        "version",
        "server_id",
        "log_bin",
        "binlog_format",
        "binlog_row_image",
        "binlog_row_metadata",
        "binlog_row_value_options",
    ),
    *("binlog_expire_logs_seconds", "binlog_expire_logs_auto_purge", "expire_logs_days", "max_binlog_total_size"),
    *(
        "gtid_mode",
        "enforce_gtid_consistency",
        "server_uuid",
        "server_uid",
        "gtid_domain_id",
        "lower_case_table_names",
        "max_allowed_packet",
    ),
    *("log_slave_updates", "log_replica_updates", "gtid_slave_pos", "sync_binlog"),
    *("log_bin_compress", "binlog_transaction_compression"),
)
_DAY_S: Final = 86_400
_REPLICA_STATUS: Final = (8, 0, 22)
"""MySQL's version from which on statements speak of replicas."""


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """The global variables of a server, by name; one that it does not have is missing."""

    variables: Mapping[str, str]

    def __getitem__(self, name: str) -> str:
        """Returns a variable's value, empty for one that the server does not have."""
        return self.variables.get(name, "")

    @property
    def is_mariadb(self) -> bool:
        return "mariadb" in self["version"].lower()

    @property
    def product(self) -> str:
        return "MariaDB" if self.is_mariadb else "MySQL"

    @property
    def connector(self) -> Literal["mysql", "mariadb"]:
        """What Debezium calls a source of this product."""
        return "mariadb" if self.is_mariadb else "mysql"

    @property
    def version(self) -> tuple[int, ...]:
        return version_of(self["version"])

    @property
    def server_id(self) -> int:
        return int(self["server_id"] or 0)

    @property
    def identity(self) -> str:
        """What tells the server from all others; empty where it does not say it."""
        return self["server_uuid"] or self["server_uid"]

    @property
    def has_gtids(self) -> bool:
        """Whether every transaction in the log has a GTID."""
        return self.is_mariadb or self["gtid_mode"].upper() == "ON"

    @property
    def expiry_s(self) -> int:
        """Seconds after which the server removes files of its log by their age; 0: it does not."""
        if self["binlog_expire_logs_auto_purge"].upper() == "OFF":
            return 0
        seconds = int(self["binlog_expire_logs_seconds"] or 0)
        return seconds or round(float(self["expire_logs_days"] or 0) * _DAY_S)

    @property
    def log_bytes_max(self) -> int:
        """Bytes of the log beyond which MariaDB removes its oldest files; 0: it does not."""
        return int(self["max_binlog_total_size"] or 0)

    @property
    def logs_replicated(self) -> bool:
        """Whether changes that the server has as a replica come into its own log."""
        return (self["log_replica_updates"] or self["log_slave_updates"]).upper() in ("ON", "1")

    @property
    def compresses_log(self) -> bool:
        return "ON" in (self["log_bin_compress"].upper(), self["binlog_transaction_compression"].upper())

    @property
    def replica_status(self) -> str:
        """The statement that shows what the server replicates."""
        if self.is_mariadb:
            return "show all slaves status"
        return "show replica status" if self.version >= _REPLICA_STATUS else "show slave status"

    @property
    def readers_statement(self) -> str:
        """The statement that shows who reads the log, as far as readers tell it."""
        return "show replicas" if not self.is_mariadb and self.version >= _REPLICA_STATUS else "show slave hosts"

    def set_global(self, name: str, value: str) -> str:
        """Returns the statement that sets a variable; MySQL keeps it over a restart."""
        return f"SET {'GLOBAL' if self.is_mariadb else 'PERSIST'} {name} = {value}"


def read_facts(connection: MySqlConnection) -> ServerFacts:
    """Asks the server."""
    names = ", ".join(f"'{name}'" for name in _NAMES)
    rows: Sequence[tuple[object, ...]] = connection.ask(f"show global variables where variable_name in ({names})")
    return ServerFacts({str(name).lower(): str(value) for name, value in rows})
