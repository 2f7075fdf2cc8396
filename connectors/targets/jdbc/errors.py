"""What may go wrong between records and the tables of a database, by code; and what servers say, in the words of a sink of
records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from cdcworker.connectors import sink_errors
from cdcworker.connectors.api.record_target import TargetUnavailable
from cdcworker.connectors.record_sink.errors import RECORD_REFUSED, TARGET_REFUSES, TARGET_UNAVAILABLE
from cdcworker.schemas.errors import CdcError, declare

TABLE_UNFIT: Final = declare(
    "sink.table_unfit",
    "config",
    "A table of the target does not fit the records",
    "Create or alter the table as the message says, or set schema.evolution=basic, which creates tables, adds columns and widens"
    " them. Then restart the task: no record was set aside for it.",
)
_CODES: Final[Mapping[str, str]] = {
    sink_errors.TARGET_VALUE: RECORD_REFUSED,
    sink_errors.SCHEMA_REFUSED: TABLE_UNFIT,
    sink_errors.TARGET_GONE: TARGET_UNAVAILABLE,
}


@contextmanager
def values_made() -> Iterator[None]:
    """Around what makes texts of values. CdcError of kind `data` for one that is not what its column's type says: JSON holds anything."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        text = f"a value is none of its column's type ({type(error).__name__})"
        raise CdcError(RECORD_REFUSED, text) from None


def as_target_error(error: CdcError) -> CdcError:
    """Returns an error of a database as one of a sink of records: what a value gave cause for refuses the record, what passes is
    tried again, and all else halts the task."""
    # Codes of databases are those of the warehouses, whose hints name keys of theirs.
    code = _CODES.get(error.code)
    if code is None:
        if not error.code.startswith("spark."):
            return error
        code = TARGET_UNAVAILABLE if error.kind == "transient" else TARGET_REFUSES
    if code == TARGET_UNAVAILABLE:
        return TargetUnavailable(code, error.message, where=error.where)
    return CdcError(code, error.message, where=error.where)
