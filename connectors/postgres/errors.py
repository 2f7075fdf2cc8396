"""The PostgreSQL source's error codes and the one table that translates psycopg's errors into them."""

from __future__ import annotations

import re

import psycopg
from cdcworker.connectors.capture.errors import CaptureErrors
from cdcworker.connectors.config.server_authentication import REFUSAL, WEAK_LOGIN
from cdcworker.connectors.postgres import oversize_rows
from cdcworker.schemas.errors import CdcError, Where, declare
from cdcworker.schemas.untrusted.driver_text import is_of_user_code, kept
from psycopg import pq

UNREACHABLE = declare(
    "postgres.unreachable",
    "transient",
    "The database server cannot be reached",
    "Check database.hostname and database.port, the network and that the server accepts connections.",
)
TLS = declare(
    "postgres.tls",
    "config",
    "The server does not offer the TLS that database.sslmode asks for, or does not prove who it is",
    "Set ssl = on at the server; for verify-full name its authority in database.sslrootcert (a file, or system) and the "
    "host as its certificate does.",
)
TRANSPORT = declare(
    "postgres.transport",
    "config",
    "The connection cannot be read in the way that is asked for",
    "Set database.transport to auto or psycopg; the message says what only libpq speaks.",
)
CONNECTION_LOST = declare(
    "postgres.connection_lost",
    "transient",
    "The connection to the database was lost",
    "Nothing to do if it comes back: reading resumes at the last committed position.",
)
AUTHENTICATION = declare(
    "postgres.authentication_failed",
    "config",
    "The database refused the user or the password",
    "Correct database.user and database.password; look for a matching line in pg_hba.conf.",
)
DATABASE_MISSING = declare(
    "postgres.database_missing",
    "config",
    "The database does not exist",
    "Correct database.dbname, or create the database.",
)
PERMISSION = declare(
    "postgres.permission_denied",
    "config",
    "The database user lacks a right",
    "Grant the named right to database.user: REPLICATION for the slot, SELECT and USAGE for the tables.",
)
NO_REPLICATION_RIGHT = declare(
    "postgres.no_replication_right",
    "config",
    "The database user may not use replication",
    "ALTER ROLE … REPLICATION (or the provider's replication role) for database.user.",
)
WAL_LEVEL = declare(
    "postgres.wal_level", "config", "wal_level is not logical", "Set wal_level = logical and restart the server."
)
SERVER_VERSION = declare(
    "postgres.server_version", "config", "The server is too old", "PostgreSQL 14 or newer is needed."
)
STANDBY = declare(
    "postgres.standby",
    "transient",
    "The server is a standby",
    "It is tried again, a failover may be under way. Else point database.hostname at the primary, or list several "
    "hosts.",
)
POOLED = declare(
    "postgres.pooled",
    "config",
    "A connection pooler stands before the server",
    "Point database.hostname and database.port at the server itself: poolers do not pass replication on.",
)
SERVER_ENCODING = declare(
    "postgres.server_encoding",
    "config",
    "The database has no text encoding",
    "Text of an SQL_ASCII database may be of any encoding, and none but UTF-8 is read, here not even a name. Convert it, and restart the task.",
)
NO_FREE_SLOT = declare(
    "postgres.no_free_slot",
    "config",
    "All replication slots or walsenders are in use",
    "Raise max_replication_slots or max_wal_senders, or drop a slot that nobody reads.",
)
SLOT_IN_USE = declare(
    "postgres.slot_in_use",
    "config",
    "Another program reads the replication slot",
    "Stop the other reader, or choose another slot.name.",
)
SLOT_BUSY = declare(
    "postgres.slot_busy",
    "transient",
    "The replication slot is still held by an earlier connection of this connector",
    "Nothing to do: it is freed when the server notices the end of that connection.",
)
TOO_MANY_CONNECTIONS = declare(
    "postgres.too_many_connections",
    "transient",
    "The server has no free connection",
    "Usual after a restart of the server, when all clients come back; if it stays, raise max_connections or "
    "max_wal_senders.",
)
SLOT_MISSING = declare(
    "postgres.slot_missing",
    "environment",
    "The replication slot of the stored position does not exist",
    "Changes since the stored position may be lost. Reset the connector's offsets to take a new snapshot.",
)
SLOT_LOST = declare(
    "postgres.slot_lost",
    "environment",
    "The server has removed WAL that the replication slot still needed",
    "Raise max_slot_wal_keep_size, drop the slot and reset the connector's offsets to take a new snapshot.",
)
SLOT_RECREATED = declare(
    "postgres.slot_recreated",
    "environment",
    "The replication slot is not the one the stored position belongs to",
    "Changes between the stored position and the slot's start are lost to it. Reset the offsets for a new snapshot.",
)
SLOT_ADVANCED = declare(
    "postgres.slot_advanced",
    "environment",
    "The replication slot was advanced past the stored position",
    "Somebody else reads or advances this slot. Choose another slot.name, and a new connector name for a new snapshot.",
)
SLOT_UNFIT = declare(
    "postgres.slot_unfit",
    "config",
    "The replication slot is of another kind",
    "The slot must be logical, of this database and with the plugin pgoutput. Choose another slot.name.",
)
SLOT_CREATION_BLOCKED = declare(
    "postgres.slot_creation_blocked",
    "transient",
    "Creating the replication slot waits for older transactions",
    "A slot starts when every transaction that was open has ended: end or cancel the named backends.",
)
OTHER_SERVER = declare(
    "postgres.other_server",
    "environment",
    "The stored position belongs to another database server",
    "The system identifier differs. Point the connector at the old server, or reset its offsets.",
)
DIVERGED = declare(
    "postgres.diverged",
    "environment",
    "The server's history does not contain the stored position",
    "After a failover the new primary lacks changes that were handed on. Reset the offsets for a new snapshot.",
)
RESTORED = declare(
    "postgres.restored",
    "environment",
    "The server's log ends before the stored position, or is another one",
    "It was restored from an older copy: it lacks changes that were handed on. Reset the offsets for a new snapshot,"
    " under another topic.prefix, since positions begin anew.",
)
POSITION_INVALID = declare(
    "postgres.position_invalid",
    "environment",
    "The stored position cannot be read",
    "Correct the connector's offsets, or reset them.",
)
PUBLICATION = declare(
    "postgres.publication",
    "config",
    "The publication does not fit",
    "Create or alter the publication as told, or set publication.autocreate.mode=filtered.",
)
PUBLICATION_NARROWED = declare(
    "postgres.publication_narrowed",
    "environment",
    "The publication leaves out operations that it has let through before",
    "ALTER PUBLICATION … SET (publish = 'insert, update, delete, truncate') and restart the task: the rows are read again of "
    "all tables whose rows snapshot.mode and snapshot.include.collection.list read; the lost changes of others stay lost. "
    "What is left out on purpose belongs into skipped.operations.",
)
TABLE_MISSING = declare(
    "postgres.table_missing",
    "config",
    "No table matches the include list",
    "Correct table.include.list: patterns match the whole of schema.table.",
)
TABLE_CLOSED = declare(
    "postgres.table_closed",
    "data",
    "The database user may not read a table's rows",
    "GRANT SELECT on the table, and USAGE on its schema, to database.user; a snapshot of the table, or a changed config, "
    "then takes it back and reads its rows. With snapshot.mode=no_data the right is not needed.",
)
TABLE_KEYLESS = declare(
    "postgres.table_without_key",
    "config",
    "A table has no key",
    "Add a primary key, or ALTER TABLE … REPLICA IDENTITY; without one updates and deletes are refused or unkeyed.",
)
DECODE = declare(
    "postgres.stream_malformed",
    "internal",
    "A message of the replication stream could not be decoded",
    "Report it with the position; nothing after it has been handed on.",
)
VALUE = declare(
    "postgres.value_unsupported",
    "data",
    "A value has no form in its column's type",
    "Exclude the column with column.exclude.list, or change the value in the source.",
)
MASK_UNFIT = declare(
    "postgres.mask_unfit",
    "config",
    "A column cannot be masked as the config says",
    "Leave the column out with column.exclude.list; a column of the key can be hashed, or message.key.columns gives the "
    "records another key.",
)
MESSAGE_KEY = declare(
    "postgres.message_key",
    "config",
    "The table cannot have the key that message.key.columns names",
    "Name columns of the table; those outside of its primary key need ALTER TABLE … REPLICA IDENTITY FULL.",
)
SCHEMA_CHANGED = declare(
    "postgres.schema_changed",
    "config",
    "A table's columns or key have changed, and schema.change.policy is halt",
    "Set schema.change.policy to evolve to go on with the new columns.",
)
SCHEMA_PAUSED = declare(
    "postgres.schema_paused",
    "data",
    "A table's columns or key have changed, and schema.change.policy is pause-table",
    "Look at the change; a snapshot of the table, or a changed config, takes it back and reads its rows anew.",
)
TABLE_RETURNS = declare(
    "postgres.table_returns",
    "transient",
    "A table that was held back is asked for",
    "Nothing to do: the task starts anew and reads its rows.",
)
TYPE_REFUSED = declare(
    "postgres.type_refused",
    "data",
    "A column's type has no form of its own",
    "Leave the column out with column.exclude.list, or set unknown.type.handling.mode to text, bytes or skip.",
)
SCHEMA_LOOKUP = declare(
    "postgres.schema_unknown",
    "internal",
    "A change names a table that the stream has not described",
    "Report it with the position; nothing after it has been handed on.",
)
SPOOL = declare(
    "postgres.spool_broken",
    "transient",
    "The spool of open transactions cannot be read",
    "Nothing if it passes: the server sends open transactions again. Else look at the volume of the worker's state.dir.",
)
TABLE_LOCKED = declare(
    "postgres.table_locked",
    "transient",
    "A lock on a table is waited for",
    "End or cancel the named backend; what waits for it goes on by itself.",
)
SNAPSHOT_REFUSED = declare(
    "postgres.snapshot_refused",
    "config",
    "The requested snapshot cannot be taken",
    "Name tables that the connector captures, and a condition that their columns allow; then ask again.",
)
STANDBY_SLOTS = declare(
    "postgres.standby_slots",
    "config",
    "The stream of a failover slot waits for a standby that is not there",
    "Start the standby that synchronized_standby_slots names, or take its slot out of that setting.",
)
SLOTS_CHANGED = declare(
    "postgres.slots_changed",
    "config",
    "The server has slots of this connector for another slot.count",
    "Set slot.count back: every task goes on exactly where it was. To change it, stop the connector, delete its offsets, drop "
    "the old slots (the doctor shows how) and start it: all rows are read again.",
)
REPLICA_IDENTITY = declare(
    "postgres.replica_identity",
    "config",
    "A table cannot be given the replica identity that the config names",
    "Let the tables' owner run the ALTER TABLE that the doctor shows, or correct replica.identity.autoset.values.",
)
QUERY = declare(
    "postgres.query_failed",
    "internal",
    "The database refused a statement",
    "Look at the server's log for the statement.",
)

CAPTURE = CaptureErrors(
    message_key=MESSAGE_KEY,
    mask_unfit=MASK_UNFIT,
    schema_changed=SCHEMA_CHANGED,
    schema_paused=SCHEMA_PAUSED,
    snapshot_refused=SNAPSHOT_REFUSED,
    spool=SPOOL,
)
"""The codes of this connector for what the shared capture code finds."""

_BY_STATE: dict[str, str] = {
    "22021": SERVER_ENCODING,
    "28P01": AUTHENTICATION,
    "28000": AUTHENTICATION,
    "3D000": DATABASE_MISSING,
    "42501": PERMISSION,
    "53400": NO_FREE_SLOT,
    "53300": TOO_MANY_CONNECTIONS,
    "55006": SLOT_BUSY,
    "55P03": TABLE_LOCKED,
    "57P03": UNREACHABLE,
    "25006": STANDBY,
}

_ABOUT_DATA = ("22", "23", "44", "P0", "38", "39", "2F")
"""SQLSTATE classes of data, constraints and user-written functions."""

# A failed connect carries no SQLSTATE, only libpq's or the server's English text (lc_messages of the server permitting).
_BY_TEXT: tuple[tuple[str, str], ...] = (
    (REFUSAL, WEAK_LOGIN),
    (r"password authentication failed|no password supplied|authentication failed|pg_hba\.conf", AUTHENTICATION),
    (r"role .* does not exist|is not permitted to log in", AUTHENTICATION),
    (r"database .* does not exist", DATABASE_MISSING),
    (r"permission denied to start WAL sender|must be superuser or replication role", NO_REPLICATION_RIGHT),
    (
        r"number of requested standby connections|too many (clients|connections)|remaining connection slots",
        TOO_MANY_CONNECTIONS,
    ),
    (r"all replication slots are in use", NO_FREE_SLOT),
    (r"can no longer (get changes|be accessed)|requested WAL segment .* has already been removed", SLOT_LOST),
    (r"is active for PID", SLOT_BUSY),
    (r"replication slot .* does not exist", SLOT_MISSING),
    (r"publication .* does not exist", PUBLICATION),
    (r"could not translate host name", UNREACHABLE),
    (oversize_rows.PATTERN, oversize_rows.ROW_TOO_LARGE),
    (oversize_rows.NO_SEND_PATTERN, oversize_rows.NO_SEND_FUNCTION),
    (r"SSL was required|certificate verify failed|root certificate file .* does not exist|server certificate for", TLS),
)


def translate(exc: BaseException, where: Where | None = None) -> CdcError:
    """One foreign error as ours; the server's primary message is kept, its detail (which may hold values) is not."""
    if isinstance(exc, CdcError):
        return exc
    state = getattr(exc, "sqlstate", None)
    text = _primary(exc)
    place = dict(where or {})
    if state:
        place["sqlstate"] = state
    # The client names the value by itself that it cannot read or send.
    context = getattr(getattr(exc, "diag", None), "context", None)
    told = kept(text) if state is None and isinstance(exc, psycopg.DataError) else _safe(text, state, context)
    return CdcError(_code(exc, state, text), told, where=place)


def translated(exc: Exception) -> Exception:
    """A driver's error as ours; any other exception as it is."""
    return translate(exc) if isinstance(exc, psycopg.Error) else exc


def translate_result(result: pq.abc.PGresult, where: Where | None = None) -> CdcError:
    """libpq's result of a statement that failed."""

    def text_of(field: pq.DiagnosticField) -> str | None:
        return found.decode(errors="replace") if (found := result.error_field(field)) else None

    text = text_of(pq.DiagnosticField.MESSAGE_PRIMARY) or result.error_message.decode(errors="replace")
    return translate_text(text, where, text_of(pq.DiagnosticField.SQLSTATE), text_of(pq.DiagnosticField.CONTEXT))


def translate_text(
    text: str, where: Where | None = None, state: str | None = None, context: str | None = None
) -> CdcError:
    """The server's or libpq's error text, with the server's SQLSTATE and the error's context where there are any."""
    code = _match(text) or (_of_state(state) if state else CONNECTION_LOST)
    told = {**(where or {}), **({"sqlstate": state} if state else {})}
    return CdcError(code, _safe(_one_line(text), state, context), where=told)


def _safe(text: str, state: str | None, context: str | None = None) -> str:
    """The server's text, unless it is about data, of a function, or under an SQLSTATE that only a function raises: such texts quote
    values (`invalid input syntax for …: "value"`)."""
    if state is None:
        return text
    try:
        name = psycopg.errors.lookup(state).__name__
    except KeyError:
        return "the server reports an error about a value; its text is left out"
    if not state.startswith(_ABOUT_DATA) and not is_of_user_code(context):
        return text
    return f"the server reports {name} about a value; its text is left out"


def _code(exc: BaseException, state: str | None, text: str) -> str:
    by_text = _match(text)
    if by_text:
        return by_text
    if state:
        return _of_state(state)
    if isinstance(exc, psycopg.OperationalError):
        return UNREACHABLE if "connection failed" in text or "connection timeout" in text else CONNECTION_LOST
    return QUERY


def _of_state(state: str) -> str:
    if state in _BY_STATE:
        return _BY_STATE[state]
    return CONNECTION_LOST if state.startswith(("08", "57P")) else QUERY


def _match(text: str) -> str | None:
    return next((code for pattern, code in _BY_TEXT if re.search(pattern, text)), None)


def _primary(exc: BaseException) -> str:
    diag = getattr(exc, "diag", None)
    primary = getattr(diag, "message_primary", None)
    return _one_line(primary or str(exc) or type(exc).__name__)


def _one_line(text: str) -> str:
    return " ".join(text.replace("ERROR:", "").replace("FATAL:", "").split())[:500]
