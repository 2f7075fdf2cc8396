"""The database of an address, by its kind. A module is imported where one of its kind is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from cdcworker.connectors.api.kit import SourcePlace
from cdcworker.connectors.config import tls_policy
from cdcworker.connectors.query_source.address import FileAddress, parsed
from cdcworker.connectors.query_source.database import QueriedDatabase, QueryRequest


def _sqlite(request: QueryRequest) -> QueriedDatabase:
    from cdcworker.connectors.query_source.sqlite import QueriedSqlite

    return QueriedSqlite(request)


def _duckdb(request: QueryRequest) -> QueriedDatabase:
    from cdcworker.connectors.query_source.duckdb import QueriedDuckDb

    return QueriedDuckDb(request)


def _postgres(request: QueryRequest) -> QueriedDatabase:
    from cdcworker.connectors.query_source.postgres import QueriedPostgres

    return QueriedPostgres(request)


def _mysql(request: QueryRequest) -> QueriedDatabase:
    from cdcworker.connectors.query_source.mysql import QueriedMySql

    return QueriedMySql(request)


_KINDS: Final[Mapping[str, Callable[[QueryRequest], QueriedDatabase]]] = {
    "sqlite": _sqlite,
    "duckdb": _duckdb,
    "postgres": _postgres,
    "mysql": _mysql,
}


def open_database(place: SourcePlace) -> QueriedDatabase:
    """Returns the database of a parsed config; nothing is connected to yet. CdcError."""
    request = _request(place.config, place)
    address = request.address
    if not isinstance(address, FileAddress):
        mode = f"sslmode={address.sslmode}"
        tls_policy.check("connection.url", mode, tls_policy.level_of(address.sslmode), address.hosts)
    return _KINDS[address.kind](request)


def _request(config: Mapping[str, Any], place: SourcePlace) -> QueryRequest:
    password = config["connection.password"]
    return QueryRequest(
        parsed(config["connection.url"]),
        config["query"],
        config["query.timeout.ms"] / 1000,
        config["connection.username"] or "",
        password.reveal() if password else "",
        place.file_roots,
    )
