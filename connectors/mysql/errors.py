"""The error codes of sources of MySQL and MariaDB, and the errors that parsers of the binary log raise about bytes."""

from __future__ import annotations

from typing import Final

from cdcworker.connectors.capture.errors import CaptureErrors
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
SCHEMA_UNPLACED: Final = declare(
    "mysql.schema_unplaced",
    "data",
    "The binary log was written when the table looked otherwise, and does not say how",
    "Set binlog_row_metadata = FULL at the server, so that the log says it; a snapshot of the table takes it back.",
)
PARTIAL_JSON: Final = declare(
    "mysql.partial_json",
    "data",
    "The binary log holds a part of a JSON value only",
    "SET PERSIST binlog_row_value_options = '' at the server; a snapshot of the table takes it back.",
)
STATEMENT_LOGGED: Final = declare(
    "mysql.statement_logged",
    "config",
    "Rows were changed by a statement that the binary log holds as text",
    "SET GLOBAL binlog_format = 'ROW', and for every session that sets it. The rows of this statement are not in the log: reset the"
    " connector's offsets to take a new snapshot.",
)
ROLLED_BACK: Final = declare(
    "mysql.rolled_back",
    "data",
    "A transaction was rolled back of which a part has been handed on already",
    "The binary log holds it because it has changed a table without transactions. A snapshot of its tables corrects their rows.",
)
XA_PREPARED: Final = declare(
    "mysql.xa_prepared",
    "data",
    "The binary log holds a transaction that was prepared by XA and may be committed later",
    "Such transactions are not read: commit without XA, or with XA COMMIT … ONE PHASE, and reset the connector's offsets.",
)
LOG_INCIDENT: Final = declare(
    "mysql.log_incident",
    "environment",
    "The server says that its binary log lacks something",
    "Its own log tells what. Changes may be missing: reset the connector's offsets to take a new snapshot.",
)
CONNECTION_LOST: Final = declare(
    "mysql.connection_lost",
    "transient",
    "The connection to the database was lost",
    "Nothing to do if it comes back: reading resumes at the last committed position.",
)
LOG_TOO_LONG: Final = declare(
    "mysql.log_too_long",
    "environment",
    "What was looked for in the binary log was not found in time",
    "Name the place by the set of GTIDs before it, as gtid_executed (MariaDB: gtid_binlog_pos) has them, which needs no search;"
    " or take `earliest` or `now`. Smaller files (max_binlog_size) are searched sooner.",
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
LOG_RESET: Final = declare(
    "mysql.log_reset",
    "environment",
    "The server's binary log is not the one that was read: it was reset, or the server was put back from a copy",
    "Changes since the stored position may be lost to it. Reset the connector's offsets to take a new snapshot, or set"
    " position.lost.policy to resnapshot; before a log is reset, pause the connector and let it read to the end.",
)
OTHER_SERVER: Final = declare(
    "mysql.other_server",
    "environment",
    "The stored position is one of another server",
    "Point the connector at the server that it read before. Only a position of GTIDs holds on another server of the same history,"
    " and none does on another product: reset the connector's offsets to take a new snapshot.",
)
REPLICA_BEHIND: Final = declare(
    "mysql.replica_behind",
    "transient",
    "The server is a replica that has not come to the stored position yet",
    "Nothing to do while it replicates: it is asked again. A replica that never gets the transactions which were read has lost them:"
    " then reset the connector's offsets to take a new snapshot.",
)
POSITION_INVALID: Final = declare(
    "mysql.position_invalid",
    "environment",
    "The stored position cannot be read",
    "Correct the connector's offsets, or reset them.",
)
TABLE_RETURNS: Final = declare(
    "mysql.table_returns",
    "transient",
    "A table that was held back is asked for",
    "Nothing to do: the task starts anew and reads its rows.",
)
KEYLESS_TOO_LARGE: Final = declare(
    "mysql.keyless_too_large",
    "data",
    "A table without a key is too large to be read in one transaction",
    "Give it a primary key, so that it is read in chunks; or raise snapshot.keyless.max.bytes and mind that the transaction keeps"
    " old versions of rows meanwhile.",
)
SERVER_ID_IN_USE: Final = declare(
    "mysql.server_id_in_use",
    "config",
    "Another reader has connected with the same server id or server UUID",
    "Give each connector and each replica a server id of its own.",
)


UNREACHABLE: Final = declare(
    "mysql.unreachable",
    "transient",
    "The database server cannot be reached",
    "Check database.hostname and database.port, the network and that the server accepts connections.",
)
TLS: Final = declare(
    "mysql.tls",
    "config",
    "The server's certificate, or its TLS, is not what database.ssl.mode asks for",
    "Let the server speak TLS; for verify_ca and verify_identity set database.sslrootcert to the authority that signed its certificate.",
)
AUTHENTICATION: Final = declare(
    "mysql.authentication",
    "config",
    "The database refuses the login",
    "Check database.user and database.password, and that the user may log in from the worker's host.",
)
WEAK_LOGIN: Final = declare(
    "mysql.weak_login",
    "config",
    "The server asks for the password itself",
    "Set database.ssl.mode to verify_identity with database.sslrootcert, or give the user a plugin that never needs the password, such"
    " as mysql_native_password: caching_sha2_password needs it for the first login after the server has started. Where the network"
    " is trusted, set the worker property connector.auth.weakest to password.",
)
PERMISSION: Final = declare(
    "mysql.permission",
    "config",
    "The database user lacks a right",
    "Grant what the message names, to the connector's user.",
)
TABLE_CLOSED: Final = declare(
    "mysql.table_closed",
    "data",
    "The database user may not read a table's rows",
    "GRANT SELECT on the table to database.user; a snapshot of the table, or a changed config, then takes it back and reads its rows."
    " With snapshot.mode=no_data the right is not needed.",
)
SERVER: Final = declare(
    "mysql.server_error",
    "config",
    "The database refuses a statement of the connector",
    "Look up the error number in the server's manual; the server's own log may say more.",
)
VERSION: Final = declare(
    "mysql.version",
    "config",
    "The server is older than what is read",
    "Use MySQL 8.0 or MariaDB 10.5, or newer.",
)
DRIVER_MISSING: Final = declare(
    "mysql.driver_missing",
    "environment",
    "PyMySQL is not installed on the worker that was asked",
    "pip install 'cdcworker[mysql]' on the workers that are to run the connector.",
)
OTHER_PRODUCT: Final = declare(
    "mysql.other_product",
    "config",
    "connector.class names another product than the server is of",
    "Set connector.class to mysql for a server of MySQL, and to mariadb for one of MariaDB.",
)
LOG_FORMAT: Final = declare(
    "mysql.log_format",
    "config",
    "The binary log does not hold rows",
    "SET GLOBAL binlog_format = 'ROW', and put it into the server's configuration; sessions that are open keep the format that they have.",
)
ROW_IMAGE: Final = declare(
    "mysql.row_image",
    "config",
    "The binary log does not hold whole rows",
    "SET GLOBAL binlog_row_image = 'FULL', and put it into the server's configuration; sessions that are open keep what they have.",
)
LOG_EXPIRY: Final = declare(
    "mysql.log_expiry",
    "config",
    "The server removes its binary log early",
    "SET GLOBAL binlog_expire_logs_seconds to more than the longest time in which the connector may be down.",
)
GTIDS_OFF: Final = declare(
    "mysql.gtids_off",
    "config",
    "Transactions in the binary log have no GTIDs",
    "Set gtid_mode = ON (through OFF_PERMISSIVE and ON_PERMISSIVE): without GTIDs no other server can take this one's place.",
)
TABLE_MISSING: Final = declare(
    "mysql.table_missing",
    "config",
    "No table is captured",
    "Check the include and exclude lists, and grant SELECT on the tables to the connector's user: others are not seen.",
)
MASK_UNFIT: Final = declare(
    "mysql.mask_unfit",
    "config",
    "A column cannot be masked as the config says",
    "Leave the column out with column.exclude.list; a column of the key can be hashed, or message.key.columns gives the "
    "records another key.",
)
MESSAGE_KEY: Final = declare(
    "mysql.message_key",
    "config",
    "The table cannot have the key that message.key.columns names",
    "Name columns of the table; those outside of its primary key need binlog_row_image = FULL at the server.",
)
SCHEMA_CHANGED: Final = declare(
    "mysql.schema_changed",
    "config",
    "A table's columns or key have changed, and schema.change.policy is halt",
    "Set schema.change.policy to evolve to go on with the new columns.",
)
SCHEMA_PAUSED: Final = declare(
    "mysql.schema_paused",
    "data",
    "A table's columns or key have changed, and schema.change.policy is pause-table",
    "Look at the change; a snapshot of the table, or a changed config, takes it back and reads its rows anew.",
)
SNAPSHOT_REFUSED: Final = declare(
    "mysql.snapshot_refused",
    "config",
    "The requested snapshot cannot be taken",
    "Name tables that the connector captures, and a condition that their columns allow; then ask again.",
)
SPOOL: Final = declare(
    "mysql.spool_broken",
    "transient",
    "The spool of a large transaction cannot be read",
    "Nothing if it passes: the transaction is read again from the log. Else look at the volume of the worker's state.dir.",
)
CAPTURE: Final = CaptureErrors(
    message_key=MESSAGE_KEY,
    mask_unfit=MASK_UNFIT,
    schema_changed=SCHEMA_CHANGED,
    schema_paused=SCHEMA_PAUSED,
    snapshot_refused=SNAPSHOT_REFUSED,
    spool=SPOOL,
)
"""The codes of these sources for what the shared capture code finds."""


class MalformedError(ValueError):
    """Bytes that are not in the binary log's format. The message says what is wrong and holds no value of a row."""


class UndecodableError(ValueError):
    """A value that is whole but not one of its type, such as text that is not in its character set."""


class UnknownTypeError(ValueError):
    """A column's type is not known; the message names its code."""


class MissingMetadataError(ValueError):
    """A table map does not say what the values of a column need; the message says what."""
