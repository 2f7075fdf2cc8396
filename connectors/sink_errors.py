"""Error codes of the Spark sink, and the tables that translate what psycopg and Spark raise."""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping
from typing import Any

from cdcworker.connectors.config.server_authentication import REFUSAL, WEAK_LOGIN
from cdcworker.schemas.errors import CODES, INTERNAL, CdcError, declare

UNDECODABLE = declare(
    "spark.undecodable",
    "data",
    "A record cannot be decoded with the schema it names",
    "Read the record at the given offset; if it is not ours, remove the topic from the sink or correct its producer.",
)
WIRE_FORMAT = declare(
    "spark.wire_format",
    "config",
    "A topic's records have a form that the sink does not read",
    "Let the topic's source write Debezium's envelope in Avro: take JsonConverter and ExtractNewRecordState out of its"
    " config; or leave the topic out of the sink.",
)
UNKNOWN_SCHEMA = declare(
    "spark.unknown_schema",
    "data",
    "A record names a schema id that the schema log does not hold",
    "Check that the source and the sink use the same schema topic; restore it from a backup if records were lost.",
)
FENCED = declare(
    "spark.fenced",
    "fenced",
    "A newer owner of this sink task writes to the target",
    "Nothing to do: the newer task goes on. If there is none, restart the task.",
)
LEDGER_MOVED = declare(
    "spark.ledger_moved",
    "fenced",
    "The target's ledger moved while a batch was being prepared",
    "Restart the task: it reads the ledger again.",
)
LEDGER_BUSY = declare(
    "spark.ledger_busy",
    "transient",
    "A task of the connector still applies a batch",
    "Wait until the task has stopped, then ask again.",
)
LEDGER_LOST = declare(
    "spark.ledger_lost",
    "data",
    "A table of a lake has lost the commit that holds the sink's offsets",
    "Keep the table's log for longer. Drop the table and load it again, or give its topic offsets by hand.",
)
DATA_LOST = declare(
    "spark.data_lost",
    "data",
    "Kafka no longer holds the records that the ledger asks for",
    "Load the tables again from the source, or reset the sink's offsets; raise the retention of the topics.",
)
SCHEMA_REFUSED = declare(
    "spark.schema_refused",
    "data",
    "A schema change cannot be applied to the target table",
    "Give the target's column a type, or the table a form, that the source's fits, or drop the target table and load it again;"
    " once that is done the table goes on by itself. With schema.change.policy=halt or fail the whole task has stopped:"
    " restart it then.",
)
TARGET_COLLISION = declare(
    "spark.target_collision",
    "config",
    "Two topics write to the same target table",
    "Set warehouse.schema for one of the sinks, or leave one of the topics out.",
)
TARGET_TWICE = declare(
    "spark.target_twice",
    "config",
    "Two tables of the warehouse hold offsets of one topic",
    "Look at both folders and move one of them out of warehouse.path, then restart the task: it goes on with the one that stays,"
    " wherever that lies, from its offsets. Of a table and a copy keep the table; of a table that was begun while another one"
    " lay elsewhere keep the older one, which has the rows from before: the rest is read from the topic again.",
)
TARGET_RESERVED = declare(
    "spark.target_reserved",
    "config",
    "A topic would be written into a schema of the sink's or the server's own",
    "Leave the topic out, or set warehouse.schema to a schema for data.",
)
TARGET_AUTH = declare(
    "spark.target_auth",
    "config",
    "The warehouse refused the user or the password",
    "Correct warehouse.user and warehouse.password; of an object store, its keys of the config: warehouse.s3.access.key and"
    " warehouse.s3.secret.key, warehouse.gcs.credentials, warehouse.azure.account.key or warehouse.azure.sas.token.",
)
TARGET_DATABASE = declare(
    "spark.target_database",
    "config",
    "The warehouse database does not exist",
    "Create the database or correct warehouse.dbname.",
)
TARGET_RIGHTS = declare(
    "spark.target_rights",
    "config",
    "The warehouse user lacks a right",
    "Grant CREATE on the database, or on the schemas it writes to, to warehouse.user; of files, let the worker's user write; in an"
    " object store, let the access key list the bucket and get, put and delete the objects below warehouse.path.",
)
TARGET_UNREACHABLE = declare(
    "spark.target_unreachable",
    "transient",
    "The warehouse cannot be reached",
    "Check warehouse.hostname, warehouse.port and the network; of files, that the disk is there, writable and not full;"
    " of an object store, warehouse.s3.endpoint and whether it is up or asks for fewer requests."
    " The task tries again.",
)
TARGET_BUCKET = declare(
    "spark.target_bucket",
    "config",
    "The bucket of the warehouse is not there, or is elsewhere",
    "Create the bucket, or correct warehouse.path, warehouse.s3.region, warehouse.s3.endpoint or"
    " warehouse.s3.path.style.access; then restart the task.",
)
TARGET_CLOCK = declare(
    "spark.target_clock",
    "environment",
    "The object store refuses requests because the clocks differ",
    "Set the worker's clock, by NTP: an object store takes a request within some minutes of its own time. Then restart the task.",
)
TARGET_STORE_UNFIT = declare(
    "spark.target_store_unfit",
    "config",
    "The warehouse cannot lie in this store",
    "Use a folder, or a bucket of S3, Google Cloud Storage or Azure in a store that does conditional puts (If-None-Match and"
    " If-Match), without which two writers could both take the same number of a manifest.",
)
TARGET_GONE = declare(
    "spark.target_gone",
    "transient",
    "The sink has written a table, or all of them, that the warehouse does not have",
    "Bring it back: mount its file system again, or restore it; the task goes on by itself. If it was dropped on purpose, stop"
    " the connector, reset the offsets of its topic (DELETE or PATCH /connectors/NAME/offsets) and resume it: the table is"
    " made again from what the topic still holds.",
)
TARGET_BROKEN = declare(
    "spark.target_broken",
    "data",
    "Files of a table of the lake are missing or cannot be read, and do not come back",
    "Bring back what is missing, or roll the table back to a version that is whole; or drop it, reset the offsets of its topic"
    " and let it be loaded again. The other tables go on meanwhile. With schema.change.policy=halt or fail the whole task has"
    " stopped: restart it then.",
)
MAINTENANCE_FAILED = declare(
    "spark.maintenance_failed",
    "internal",
    "A table of a lake was not maintained",
    "Nothing is lost, and batches go on: the next run tries again. If it does not work either, the task's log at level DEBUG says"
    " where it failed; maintenance.interval.ms=0 switches it off.",
)
TARGET_LOCKED = declare(
    "spark.target_locked",
    "transient",
    "A lock among the warehouse's files, or on one of its tables, has been held by somebody else for long",
    "Look which process has the file open (lsof, lslocks) on the machines that share the file system: a re-drive of dead"
    " letters, or another task of the sink, that hangs. Of a table, pg_blocking_pids says who holds it, and the role's"
    " lock_timeout how long is waited. End it; the task tries again.",
)
TARGET_VALUE = declare(
    "spark.target_value",
    "data",
    "The warehouse refused a value or a type",
    "Compare the target column's type with the source's; widen it, or drop the target table and load it again.",
)
TARGET_FAILED = declare(
    "spark.target_failed", "internal", "The warehouse refused a statement", "Read the SQLSTATE in the message."
)
TARGET_VERSION = declare(
    "spark.target_version",
    "environment",
    "The warehouse's server is too old",
    "Use PostgreSQL 15, MySQL 8.0.19 or MariaDB 10.6, or newer.",
)
GATEWAY = declare(
    "spark.gateway",
    "environment",
    "Spark's Java process did not start",
    "Check that Java 17 to 21 and the Spark libraries are installed: cdcworker jars verify.",
)
CLUSTER_UNREACHABLE = declare(
    "spark.cluster_unreachable",
    "transient",
    "Spark's cluster did not take the driver",
    "Check spark.master, that it has free cores and memory, that it answers with the same spark.authenticate.secret, and"
    " that its executors reach spark.driver.host; the task tries again.",
)
ARCHIVE = declare(
    "spark.archive",
    "environment",
    "An archive for Spark's executors is not there, or cannot be made",
    "Make it with `cdcworker spark-archive FILE` in the worker's environment, with the extra spark, and put it where"
    " spark.archives names it, on each worker.",
)
ARCHIVE_VERSION = declare(
    "spark.archive_version",
    "environment",
    "An archive for Spark's executors was made by another version of cdcworker than the driver's",
    "Make it anew with `cdcworker spark-archive FILE` in the worker's environment, after each upgrade, and put it where"
    " spark.archives names it, on each worker.",
)
JVM_DIED = declare(
    "spark.jvm_died",
    "transient",
    "Spark's Java process ended by itself, again with the smallest batches",
    "Look at the task's log; if it ran out of memory, raise spark.driver.memory.",
)
KAFKA_UNREACHABLE = declare(
    "spark.kafka_unreachable",
    "transient",
    "Kafka cannot be read",
    "Check the brokers and the network; the task tries again.",
)
KAFKA_DENIED = declare(
    "spark.kafka_denied",
    "config",
    "The broker denies the sink a right",
    "Grant Describe and Read on the sink's topics and on the schema topic: `cdcworker roles kafka` prints the ACLs.",
)
QUERY_FAILED = declare(
    "spark.query_failed", "transient", "Spark's streaming query ended", "The task starts it again from the ledger."
)
NO_WATERMARK = declare(
    "spark.no_watermark",
    "config",
    "A source of the sink does not say which of its transactions are complete",
    "consistency=source needs topics of our own sources, which write <topic.prefix>.watermark; or set"
    " consistency=eventual.",
)
WAREHOUSE_UNKNOWN = declare(
    "spark.warehouse_unknown",
    "config",
    "There is no such kind of warehouse",
    "Use one of the kinds that the key warehouse names.",
)

_BY_SQLSTATE = {
    "28P01": TARGET_AUTH,
    "28000": TARGET_AUTH,
    "3D000": TARGET_DATABASE,
    "42501": TARGET_RIGHTS,
    "42P01": TARGET_GONE,
    "55P03": TARGET_LOCKED,
}
_TRANSIENT_CLASSES = ("08", "40", "53", "57")
"""Connection, rollback (serialisation, deadlock), resources, operator intervention."""


def from_psycopg(exc: Exception, where: Mapping[str, str | int] | None = None) -> CdcError:
    """The one translation of psycopg's errors; the server's message is left out where it could quote a value."""
    state: str | None = getattr(exc, "sqlstate", None)
    name = type(exc).__name__
    if state is None:
        text = str(exc)
        if REFUSAL in text:
            return CdcError(WEAK_LOGIN, text.rpartition(REFUSAL)[2].partition(": ")[2].strip(), where=where)
        if "password authentication failed" in text or "no password supplied" in text:
            return CdcError(TARGET_AUTH, "the warehouse refused the login", where=where)
        if re.search(r'database ".*" does not exist', text):
            return CdcError(TARGET_DATABASE, "the warehouse database does not exist", where=where)
        if name in ("OperationalError", "ConnectionTimeout", "InterfaceError"):
            return CdcError(TARGET_UNREACHABLE, f"the connection failed ({name})", where=where)
        # The client refuses by itself what the server would not understand: that is no better the next time.
        return CdcError(TARGET_VALUE if name == "DataError" else TARGET_FAILED, name, where=where)
    if state in _BY_SQLSTATE:
        return CdcError(_BY_SQLSTATE[state], f"SQLSTATE {state} ({name})", where=_named(exc, where))
    if state[:2] in _TRANSIENT_CLASSES:
        return CdcError(TARGET_UNREACHABLE, f"SQLSTATE {state} ({name})", where=where)
    code = TARGET_VALUE if state[:2] in ("22", "23") or state == "42804" else TARGET_FAILED
    return CdcError(code, f"SQLSTATE {state} ({name})", where=_named(exc, where))


def _named(exc: Exception, where: Mapping[str, str | int] | None) -> dict[str, str | int]:
    """The place of an error with the table, column and constraint that the server names."""
    found: dict[str, str | int] = dict(where or {})
    diag: Any = getattr(exc, "diag", None)
    for key, value in (
        ("schema", getattr(diag, "schema_name", None)),
        ("table", getattr(diag, "table_name", None)),
        ("column", getattr(diag, "column_name", None)),
        ("constraint", getattr(diag, "constraint_name", None)),
    ):
        if value:
            found.setdefault(key, value)
    context = str(getattr(diag, "context", "") or "")
    column = re.search(r"COPY \S+ line \d+, column ([^:\s,]+)", context.partition("\n")[0])
    if column:
        found.setdefault("column", column[1].strip('"'))
    return found


def from_os(exc: OSError, where: Mapping[str, str | int] | None = None) -> CdcError:
    """The one translation of what a file system refuses. What is missing or cannot be written may be back in a moment:
    a disk that is away, full or read only."""
    if exc.errno is None and not isinstance(exc, FileNotFoundError):
        # Of a library that could not read what is in a file: time does not mend it.
        return CdcError(TARGET_FAILED, f"a file could not be read or written ({type(exc).__name__})", where=where)
    name = errno.errorcode.get(exc.errno or 0, type(exc).__name__)
    code = TARGET_RIGHTS if isinstance(exc, PermissionError) else TARGET_UNREACHABLE
    return CdcError(code, f"the file system refused it ({name})", where=where)


_SPARK_CAUSES = (
    ("OffsetOutOfRangeException", DATA_LOST, "an offset is out of the topic's range"),
    ("data was missed", DATA_LOST, "records are gone from a topic"),
    ("Some data may have been lost", DATA_LOST, "records are gone from a topic"),
    ("KAFKA_DATA_LOSS", DATA_LOST, "records are gone from a topic"),
    ("UnknownTopicOrPartitionException", DATA_LOST, "a topic was deleted while it was read"),
    ("TopicAuthorizationException", KAFKA_DENIED, "the broker denies reading a topic"),
    ("GroupAuthorizationException", KAFKA_DENIED, "the broker denies a group"),
    ("SaslAuthenticationException", KAFKA_DENIED, "the broker refused the login"),
    ("TimeoutException", KAFKA_UNREACHABLE, "the broker did not answer in time"),
    ("KafkaException", KAFKA_UNREACHABLE, "the broker's client failed"),
)


def from_spark(exc: BaseException, where: Mapping[str, str | int] | None = None) -> CdcError:
    """The one translation of Spark's errors; the text of the exception is for the log, not for the error."""
    text = str(exc)
    for needle, code, message in _SPARK_CAUSES:
        if needle in text:
            denied = re.search(r"Not authorized to access topics: \[([^\]\s,]{1,249})", text)
            return CdcError(code, message, where={**(where or {}), "topic": denied[1]} if denied else where)
    condition = getattr(exc, "getCondition", lambda: None)() or getattr(exc, "getErrorClass", lambda: None)()
    return CdcError(QUERY_FAILED, f"the streaming query ended with {condition or type(exc).__name__}", where=where)


def gone(topic: str) -> CdcError:
    """Returns the error for a table that is missing: to create it again would be to forget what was in it."""
    return CdcError(TARGET_GONE, "a table of the sink is not there any more", where={"topic": topic})


_PASSING = (
    # A server, the network or a machine's handles: what the files hold is not known then.
    *("ConnectException", "UnknownHostException", "NoRouteToHost", "SocketTimeout", "SocketException", "SSLException"),
    *("ConnectTimeout", "ConnectionClosedException", "NoHttpResponseException", "InterruptedIOException"),
    *("Connection refused", "Connection reset", "Broken pipe", "Premature end of", "Unable to execute HTTP request"),
    *("Stale file handle", "Too many open files", "Input/output error", "Transport endpoint is not connected"),
    *("Host is down", "No space left on device", "Permission denied"),
    # HDFS, and stores of objects.
    *("End of File Exception between local host", "StandbyException", "SafeModeException", "BlockMissingException"),
    *("AWSClientIOException", "AWSServiceThrottledException", "AWSStatus500Exception", "Status Code: 5", "Slow Down"),
    # A catalog's answers, which a proxy may have given in its place, as a page.
    *("ServiceUnavailableException", "ServiceFailureException", "iceberg.exceptions.RESTException"),
    *("iceberg.rest.HTTPClient", "Unexpected character ('<'"),
)


_LAKE_CAUSES = (
    # By the names of Java's exceptions, which stand in the text of what py4j and Spark raise; the first that is there.
    (LEDGER_MOVED, ("CommitFailedException", "ConcurrentModification", "ConcurrentTransaction", "ConcurrentAppend")),
    (LEDGER_MOVED, ("ConcurrentDelete", "ConcurrentWrite", "MetadataChangedException", "ProtocolChangedException")),
    (TARGET_AUTH, ("NotAuthorizedException", "ForbiddenException", "AccessControlException", "AccessDenied")),
    (TARGET_AUTH, ("Status Code: 401", "Status Code: 403")),
    (TARGET_UNREACHABLE, (*_PASSING, "SQLTransientConnectionException")),
    (TARGET_UNREACHABLE, ("RuntimeIOException", "java.io.IOException", "UncheckedSQLException")),
    # Tables that a statement is about were there when it was made.
    (TARGET_UNREACHABLE, ("TABLE_OR_VIEW_NOT_FOUND", "PATH_NOT_FOUND", "NoSuchTableException")),
    (TARGET_UNREACHABLE, ("NoSuchNamespaceException", "iceberg.exceptions.NotFoundException", "FileNotFoundException")),
    (SCHEMA_REFUSED, ("AnalysisException", "AMBIGUOUS_REFERENCE")),
)


_REFUSED = re.compile(r"cdcworker refuses \[((?:config|file)\.\w+|spark\.(?:target_\w+|gateway))\]")
"""Of a client whose connection, or whose server's answer, this process has judged."""


_OF_FILES = (
    # Why a file could not be opened or read: that it could not be says nothing yet.
    *("FileNotFoundException", "iceberg.exceptions.NotFoundException", "FILE_NOT_EXIST", "CANNOT_READ_FILE_FOOTER"),
    *("is not a Parquet file", "ParquetDecodingException", "not an Avro data file", "Not a data file"),
    *("InvalidAvroMagicException", "EOFException", "Not in GZIP format"),
    *("JsonParseException", "JsonEOFException", "MismatchedInputException", "Cannot parse"),
    *("DELTA_LOG_FILE_NOT_FOUND", "DELTA_FILE_NOT_FOUND", "DELTA_STATE_RECOVER_ERROR", "DELTA_VERSIONS_NOT_CONTIGUOUS"),
    *("DELTA_TRUNCATED_TRANSACTION_LOG", "DELTA_MISSING_PART_FILES"),
)


def is_of_files(exc: BaseException) -> bool:
    """Returns whether what a lake raises is said of files of a table: missing ones, or such that hold something else.
    Not so when it says as well why nobody could look: the network, a server, a right."""
    found, said = from_lake(exc), f"{type(exc).__name__} {exc}"
    if (
        found is None
        or found.code in (LEDGER_MOVED, TARGET_AUTH)
        or _REFUSED.search(said)
        or any(name in said for name in _PASSING)
    ):
        return False
    return any(name in said for name in _OF_FILES)


def from_lake(exc: BaseException, where: Mapping[str, str | int] | None = None) -> CdcError | None:
    """The one translation of what a lake's statements raise; None for what is not the lake's: a Java process that ended.
    The text of the exception may hold a value and is left out."""
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    if not isinstance(exc, (Py4JJavaError, PySparkException)):
        return None
    said = f"{type(exc).__name__} {exc}"
    refused = _REFUSED.search(said)
    if refused and refused[1] in CODES:
        return CdcError(
            refused[1], "a client of the lake may not do what it began; the task's log says what", where=where
        )
    for code, names in _LAKE_CAUSES:
        for name in names:
            if name in said:
                return CdcError(code, f"the lake refused it ({name})", where=where)
    condition = getattr(exc, "getCondition", lambda: None)()
    return CdcError(TARGET_FAILED, f"the lake refused it ({condition or type(exc).__name__})", where=where)


__all__ = ["INTERNAL", "from_lake", "from_os", "from_psycopg", "from_spark"]
