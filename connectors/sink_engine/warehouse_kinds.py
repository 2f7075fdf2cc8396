"""The kinds of warehouses that a sink can write to, by the name in its config key `warehouse`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from cdcworker.connectors.api.abilities import RoleOption, RoleRequest
from cdcworker.connectors.config.definition import ConfigKey
from cdcworker.connectors.sql_script import ScriptStep
from cdcworker.connectors.warehouses.clickhouse.kind import CLICKHOUSE
from cdcworker.connectors.warehouses.duckdb.kind import DUCKDB
from cdcworker.connectors.warehouses.kind import WarehouseKind
from cdcworker.connectors.warehouses.lake.kind import DELTA, ICEBERG
from cdcworker.connectors.warehouses.mysql.kind import MYSQL
from cdcworker.connectors.warehouses.parquet.kind import PARQUET
from cdcworker.connectors.warehouses.postgres.kind import POSTGRES

KINDS: Final[tuple[WarehouseKind, ...]] = (POSTGRES, MYSQL, CLICKHOUSE, DUCKDB, PARQUET, ICEBERG, DELTA)
"""In the order in which users see them; the first is the default. A new kind is one more entry."""
DEFAULT: Final = KINDS[0].name
_ROLE_SCRIPTS: Final = {kind.name: kind.role_script for kind in KINDS if kind.role_script is not None}
_BY_NAME: Final = {kind.name: kind for kind in KINDS}


def kind_of(config: Mapping[str, Any]) -> WarehouseKind:
    """Returns the kind that a config names; the default where it names none that there is, for a config may not have been
    validated yet."""
    return _BY_NAME.get(config.get("warehouse", DEFAULT), KINDS[0])


def location_keys() -> Iterable[ConfigKey]:
    """Returns the keys of all kinds that say where a target is, each once."""
    return dict.fromkeys(key for kind in KINDS for key in kind.keys)


def batch_keys() -> Iterable[ConfigKey]:
    """Returns the keys of all kinds that say how batches are written, each once."""
    return dict.fromkeys(key for kind in KINDS for key in kind.batch_keys)


def role_options() -> Sequence[RoleOption]:
    """Returns what the script of a sink's role takes: the kind of warehouse, and what the kinds that have roles take, each once."""
    kinds = tuple(_ROLE_SCRIPTS)
    warehouse = RoleOption("warehouse", "--warehouse", "The kind of warehouse.", kinds[0], kinds)
    return (warehouse, *dict.fromkeys(option for name in kinds for option in _BY_NAME[name].role_options))


def role_script(wanted: RoleRequest) -> list[ScriptStep]:
    """Returns the script of a sink's role in the kind of warehouse that the option `warehouse` names."""
    return _ROLE_SCRIPTS[wanted.options["warehouse"]](wanted)
