"""Config keys that several kinds of warehouses share, and the paths that they name."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

from cdcworker.connectors.api.abilities import RoleOption
from cdcworker.connectors.config import refusals
from cdcworker.connectors.config.allowed_hosts import host_list
from cdcworker.connectors.config.allowed_paths import NOT_ALLOWED, allowed_path
from cdcworker.connectors.config.definition import ConfigKey, between, one_of
from cdcworker.connectors.config.place_forms import FILES, store_problem
from cdcworker.connectors.warehouses.places import admit_places
from cdcworker.schemas.errors import CdcError

GROUP: Final = "Warehouse"

HOSTNAME: Final = ConfigKey(
    "warehouse.hostname",
    default="",
    importance="HIGH",
    group=GROUP,
    validator=lambda value: host_list(value) if value else None,
    doc="Host of the target.",
    connects=True,
)
PORT: Final = ConfigKey(
    "warehouse.port",
    "INT",
    validator=between(1, 65535),
    importance="HIGH",
    group=GROUP,
    doc="Port of the target; unless it is given, 5432 for PostgreSQL, 3306 for MySQL, and for ClickHouse 8123 or with TLS 8443.",
    connects=True,
)
USER: Final = ConfigKey(
    "warehouse.user",
    default="",
    importance="HIGH",
    group=GROUP,
    doc="A role, or in MySQL and ClickHouse a user, that may create tables.",
    connects=True,
)
PASSWORD: Final = ConfigKey(
    "warehouse.password",
    "PASSWORD",
    importance="HIGH",
    group=GROUP,
    doc="Password of warehouse.user.",
    connects=False,
)
SSLMODE: Final = ConfigKey(
    "warehouse.sslmode",
    default="prefer",
    validator=one_of("disable", "allow", "prefer", "require", "verify-ca", "verify-full"),
    importance="LOW",
    group=GROUP,
    doc="TLS towards the server, in libpq's modes.",
    connects=True,
)
SSLROOTCERT: Final = ConfigKey(
    "warehouse.sslrootcert", importance="LOW", group=GROUP, doc="File of trusted root certificates.", connects=True
)
SCHEMA: Final = ConfigKey(
    "warehouse.schema",
    default="",
    group=GROUP,
    doc="Schema, in MySQL and ClickHouse database, of all tables; empty: as in the source.",
    connects=False,
)
PATH: Final = ConfigKey(
    "warehouse.path",
    default="",
    importance="HIGH",
    group=GROUP,
    validator=lambda value: None if not value or value.startswith("/") else store_problem(value),
    doc="Folder of the tables of a Parquet warehouse or a lake, or the file of DuckDB, in one that the worker opens to connectors. Parquet and"
    " Delta may lie in a bucket, s3://bucket/prefix; the keys warehouse.s3 say where that is. A lake may lie in another store, named by a"
    " URI that Spark's Hadoop client opens: the page on Iceberg lists the schemes.",
    connects=True,
)
BUCKETS: Final = ConfigKey(
    "warehouse.buckets",
    "INT",
    8,
    validator=between(1, 4096),
    importance="LOW",
    group=GROUP,
    doc="Files per table of current state in Parquet, each with a share of the keys; set when a table is created.",
    connects=False,
)

ROLE_SCHEMAS: Final = RoleOption(
    "schemas",
    "--schema",
    "Where tables go: warehouse.schema, or the schemas of the source.",
    repeated=True,
    placeholder="NAME",
)


def missing(config: Mapping[str, Any], *names: str) -> list[tuple[str, str]]:
    """Returns those of the keys that have no value, each with the problem as users read it."""
    return [(name, refusals.missing(name)) for name in names if not config[name]]


def folder(config: Mapping[str, Any], roots: Sequence[str]) -> str:
    """Returns `warehouse.path`: a folder in one of the worker's file roots, or the URI of another store. CdcError
    `file.path_not_allowed` when the worker does not open it to connectors."""
    path = str(config["warehouse.path"])
    if path.startswith("/") and "://" not in path:
        # A folder that is a link is judged by where it leads.
        return str(allowed_path(os.path.realpath(path), roots, "warehouse.path"))
    require_open_root(roots)
    if store_problem(path):
        raise CdcError(NOT_ALLOWED, "warehouse.path is no URI of a store", where={"key": "warehouse.path"})
    admit_places(FILES, path, "warehouse.path", roots)
    return path


def require_open_root(roots: Sequence[str]) -> None:
    """CdcError `file.path_not_allowed` unless the worker opens / to connectors. A catalog, or another store, says by itself
    where files lie: such a connector may touch whatever the worker may."""
    if not any(os.path.realpath(root) == "/" for root in roots):
        text = "a lake that is not a local folder needs a worker that opens / to connectors"
        raise CdcError(NOT_ALLOWED, text, where={"key": "warehouse.path"})
