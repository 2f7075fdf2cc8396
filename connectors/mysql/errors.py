"""The error codes of reading a binary log, and the error that its parsers raise about bytes."""

from __future__ import annotations

from typing import Final

from cdcworker.schemas.errors import declare

MALFORMED_EVENT: Final = declare(
    "mysql.malformed_event",
    "data",
    "An event of the binary log is not in its format",
    "Look at the named place with mysqlbinlog --verify-binlog-checksum at the server. A file that is damaged there cannot be"
    " read on: reset the connector's offsets to take a new snapshot.",
)
CHECKSUM: Final = declare(
    "mysql.checksum_mismatch",
    "transient",
    "The checksum of an event is not that of its bytes",
    "It is read again. If it stays, the file is damaged at the server: see mysqlbinlog --verify-binlog-checksum.",
)
LOG_ENCRYPTED: Final = declare(
    "mysql.log_encrypted",
    "config",
    "The binary log is encrypted, and its events cannot be read",
    "Read the log from the server that holds its key: it decrypts what it sends. A file is not read by itself.",
)
EVENT_UNKNOWN: Final = declare(
    "mysql.event_unknown",
    "data",
    "The binary log holds a kind of event that is not known and may not be passed over",
    "The server is newer than this worker: use a newer worker.",
)
EVENT_TOO_LARGE: Final = declare(
    "mysql.event_too_large",
    "data",
    "An event of the binary log is larger than what is accepted",
    "Write such values in smaller transactions or rows; no server sends more than its max_allowed_packet.",
)
TYPE_UNKNOWN: Final = declare(
    "mysql.type_unknown",
    "data",
    "A column has a type that is not known",
    "Exclude the column or the table, or use a newer worker.",
)
VALUE: Final = declare(
    "mysql.value_undecodable",
    "data",
    "A value is not one of its column's type",
    "Exclude the column with column.exclude.list, or change the value in the source.",
)
ROW_METADATA: Final = declare(
    "mysql.row_metadata_missing",
    "config",
    "The binary log does not say enough about a table's columns",
    "Set binlog_row_metadata = FULL at the server.",
)
PAYLOAD_LIBRARY: Final = declare(
    "mysql.payload_library_missing",
    "environment",
    "Compressed transactions cannot be read, because a library is not installed",
    "Install pyarrow on the worker, or set binlog_transaction_compression = OFF at the server.",
)
GTID_INVALID: Final = declare(
    "mysql.gtid_invalid",
    "config",
    "A text is not a set of GTIDs",
    "MySQL writes uuid:1-5:7, with tags uuid:tag:1-5; MariaDB writes domain-server-sequence. Several are separated by commas.",
)
CONNECTION_LOST: Final = declare(
    "mysql.connection_lost",
    "transient",
    "The connection to the database was lost",
    "Nothing to do if it comes back: reading resumes at the last committed position.",
)
DUMP_REFUSED: Final = declare(
    "mysql.dump_refused",
    "config",
    "The server does not send its binary log",
    "The message holds the server's error number; the server's own log says more.",
)
LOG_OFF: Final = declare(
    "mysql.log_off",
    "config",
    "The server writes no binary log",
    "Set log_bin and binlog_format = ROW at the server and restart it.",
)
NO_REPLICATION_RIGHT: Final = declare(
    "mysql.no_replication_right",
    "config",
    "The database user may not read the binary log",
    "GRANT REPLICATION SLAVE ON *.* (MariaDB too: REPLICATION SLAVE) to the connector's user.",
)
LOG_PURGED: Final = declare(
    "mysql.log_purged",
    "environment",
    "The server has removed a part of the binary log that is still needed",
    "Changes since the stored position are lost to it. Raise binlog_expire_logs_seconds, and reset the connector's offsets to"
    " take a new snapshot.",
)
OTHER_HISTORY: Final = declare(
    "mysql.other_history",
    "environment",
    "The stored position is not in the history of this server",
    "Point the connector at the server that it read before, or at a replica of it; or reset its offsets to take a new snapshot.",
)
SERVER_ID_IN_USE: Final = declare(
    "mysql.server_id_in_use",
    "config",
    "Another reader has connected with the same server id or server UUID",
    "Give each connector and each replica a server id of its own.",
)


class MalformedError(ValueError):
    """Bytes that are not in the binary log's format. The message says what is wrong and holds no value of a row."""


class UndecodableError(ValueError):
    """A value that is whole but not one of its type, such as text that is not in its character set."""


class UnknownTypeError(ValueError):
    """A column's type is not known; the message names its code."""


class MissingMetadataError(ValueError):
    """A table map does not say what the values of a column need; the message says what."""
