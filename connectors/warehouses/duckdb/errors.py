"""What DuckDB says is wrong, as errors with codes; its message is left out, for it may quote a value."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from cdcworker.connectors.sink_errors import (
    LEDGER_MOVED,
    SCHEMA_REFUSED,
    TARGET_FAILED,
    TARGET_LOCKED,
    TARGET_RIGHTS,
    TARGET_UNREACHABLE,
    TARGET_VALUE,
)
from cdcworker.schemas.errors import CdcError, declare

NO_DATABASE: Final = declare(
    "spark.target_no_database",
    "config",
    "The file of the warehouse is none that the worker's DuckDB opens",
    "Correct warehouse.path. A file that a newer DuckDB has written is opened by one that is as new: bring the worker's up to it."
    " A broken file has to be restored; or move it away, and reset the sink's offsets.",
)
_HOLDER: Final = re.compile(r"\(PID (\d+)\)")
_VALUES: Final = ("ConversionException", "ConstraintException", "OutOfRangeException", "TypeMismatchException")
_UNFIT: Final = ("DependencyException", "CatalogException", "BinderException", "NotImplementedException")


def is_locked(exc: Exception) -> bool:
    """Returns whether another process has the file open."""
    return "set lock on file" in str(exc)


def locked(exc: Exception, file: str) -> CdcError:
    """Returns the error of a file that another process has kept open."""
    holder = _HOLDER.search(str(exc))
    where: dict[str, str | int] = {"file": file}
    if holder:
        where["pid"] = int(holder[1])
    return CdcError(TARGET_LOCKED, "another process has the warehouse's file open", where=where)


def of_open(exc: Exception, file: str) -> CdcError:
    """Returns the error of a file that could not be opened."""
    said, where = str(exc), {"file": file}
    if is_locked(exc):
        return locked(exc, file)
    if "Permission denied" in said or "Read-only file system" in said:
        return CdcError(TARGET_RIGHTS, "the file of the warehouse may not be written", where=where)
    if type(exc).__name__ == "IOException" and not re.search("not a valid DuckDB|version number|checksum|WAL", said):
        return CdcError(TARGET_UNREACHABLE, "the file of the warehouse cannot be opened", where=where)
    return CdcError(NO_DATABASE, f"the file cannot be opened ({type(exc).__name__})", where=where)


def from_duckdb(exc: Exception, where: Mapping[str, str | int] | None = None) -> CdcError:
    """The one translation of DuckDB's errors."""
    name = type(exc).__name__
    if name in _VALUES:
        return CdcError(TARGET_VALUE, name, where=where)
    if name == "TransactionException":
        return CdcError(LEDGER_MOVED, "another session of this process has changed the same rows", where=where)
    if name in ("IOException", "FatalException", "OutOfMemoryException", "InterruptException", "ConnectionException"):
        return CdcError(TARGET_UNREACHABLE, f"the file could not be read or written ({name})", where=where)
    return CdcError(TARGET_FAILED, name, where=where)


def of_alter(exc: Exception, table: str, columns: str) -> CdcError | None:
    """Returns the error of a table whose change DuckDB refuses; None where it is not the table's."""
    name = type(exc).__name__
    where = {"table": table, "column": columns} if columns else {"table": table}
    if name in _UNFIT:
        return CdcError(SCHEMA_REFUSED, f"an index, a constraint or a view needs it as it is ({name})", where=where)
    if name in _VALUES:
        return CdcError(SCHEMA_REFUSED, f"values that are there do not fit the new type ({name})", where=where)
    return None
