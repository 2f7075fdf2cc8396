"""What may go wrong between the source and any database, by code; and what servers say, in the words of the source."""

from __future__ import annotations

from typing import Final

from cdcworker.connectors import sink_errors
from cdcworker.connectors.api.plugin_errors import Misconfigured, Unavailable
from cdcworker.schemas.errors import CdcError, declare

QUERY_REFUSED: Final = declare(
    "query.refused",
    "config",
    "The database refuses the query",
    "Run the query by hand in the same database, as the same user. It has to be one SELECT that changes nothing.",
)
QUERY_TOO_SLOW: Final = declare(
    "query.too_slow",
    "config",
    "The query takes longer than query.timeout.ms",
    "Give the database an index of the cursor column, ask for less, or raise query.timeout.ms.",
)
LOGIN_REFUSED: Final = declare(
    "query.login_refused",
    "config",
    "The database refuses the user or the password",
    "Correct connection.username and connection.password.",
)
DRIVER_MISSING: Final = declare(
    "query.driver_missing",
    "environment",
    "The worker lacks the library that speaks with this kind of database",
    "pip install 'cdcworker[mysql]' for MySQL and MariaDB, 'cdcworker[duckdb]' for DuckDB, on the workers that are to run the connector.",
)


def as_query_error(error: CdcError) -> CdcError:
    """Returns an error that the translations of databases' errors have made as one of the source."""
    if not error.code.startswith("spark."):
        return error
    if error.code == sink_errors.TARGET_AUTH:
        return CdcError(LOGIN_REFUSED, "the database refuses the login", where={"key": "connection.username"})
    if error.code == sink_errors.TARGET_DATABASE:
        return Misconfigured("names a database that is not there", key="connection.url")
    if error.kind == "transient" and error.code != sink_errors.TARGET_GONE:
        return Unavailable(error.message)
    return refused(error.message)


def refused(text: str) -> CdcError:
    """Returns the error of a query that the database does not run. `text` quotes no value."""
    return CdcError(QUERY_REFUSED, f"the database refuses the query: {text}", where={"key": "query"})


def too_slow() -> CdcError:
    return CdcError(QUERY_TOO_SLOW, "the query was ended", where={"key": "query.timeout.ms"})


def driver_missing(library: str) -> CdcError:
    return CdcError(DRIVER_MISSING, f"{library} is not installed", where={"key": "connection.url"})
