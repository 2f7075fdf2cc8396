"""Kinds of warehouses: each says by itself what a sink needs to know of it."""

from __future__ import annotations

import ast
from dataclasses import fields
from pathlib import Path

import cdcworker.connectors as connectors
import pytest
from cdcworker.connectors.sink_engine.warehouse_kinds import DEFAULT, KINDS, batch_keys, kind_of, location_keys
from cdcworker.connectors.spark.config import CONFIG_DEF
from cdcworker.connectors.warehouses.kind import WarehouseKind

ROOM = Path(connectors.__path__[0])
KIND_AGNOSTIC = ("sink_engine", "spark", "transactions", "arrow", "verify", "comparison")


def texts_of(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def test_no_module_outside_the_warehouses_names_a_kind():
    files = [file for name in KIND_AGNOSTIC for file in (ROOM / name).rglob("*.py")]
    assert len(files) > 30
    found = {(file.name, name) for file in files for name in texts_of(file) & {kind.name for kind in KINDS}}
    # There it is a form of intervals.
    assert found == {("canonical_text.py", "postgres")}


def test_the_key_that_names_the_kind_takes_every_kind_and_no_other():
    key = CONFIG_DEF.keys["warehouse"]
    assert key.default == DEFAULT == "postgres"
    names = ["postgres", "mysql", "clickhouse", "duckdb", "parquet", "iceberg", "delta"]
    assert list(key.recommended) == [kind.name for kind in KINDS] == names
    assert key.validator("snowflake") is not None
    assert all(key.validator(kind.name) is None for kind in KINDS)


def test_keys_of_all_kinds_are_keys_of_the_sink_each_once():
    names = [key.name for key in (*location_keys(), *batch_keys())]
    assert len(set(names)) == len(names)
    assert set(names) <= set(CONFIG_DEF.keys)


@pytest.mark.parametrize("config", [{}, {"warehouse": ""}, {"warehouse": "snowflake"}])
def test_a_config_that_is_not_validated_yet_has_the_default_kind(config):
    assert kind_of(config).name == DEFAULT


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_kind_is_complete(kind):
    assert kind_of({"warehouse": kind.name}) is kind
    for field in fields(WarehouseKind):
        if field.name not in ("records_max", "role_script"):
            assert getattr(kind, field.name) is not None
    assert {key.group for key in kind.keys} == {"Warehouse"}
