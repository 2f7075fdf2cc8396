"""The attacks of `test_tenant` are of every key that may lead elsewhere: a new key is among them by its definition."""

from __future__ import annotations

import pytest
from cdcworker.connectors.registry import names as registry
from cdcworker.worker.validation.validate import ConnectorCatalog

from .tenant_attacks import CHOSEN, PAIRS, ROUTER, Attacks

TEXTS = ("STRING", "LIST", "PASSWORD", "CLASS")
NAMED = {
    "postgres": ("slot.name", "publication.name", "heartbeat.action.query", "signal.data.collection", "database.dbname"),
    "spark": ("warehouse.catalog.properties", "warehouse.catalog.secrets", "warehouse.catalog.uri", "spark.properties",
              "spark.archives", "spark.master", "spark.pyspark.python", "verify.interval.ms"),
}  # fmt: skip
"""Keys whose names tell little."""


@pytest.fixture(scope="module")
def attacked(tmp_path_factory):
    """Connector class → key → the values that it is given."""
    folder = tmp_path_factory.mktemp("attacks")
    found: dict[str, dict[str, list[str]]] = {}
    for attack in Attacks("g", folder, folder / "open"):
        found.setdefault(attack.plugin, {}).setdefault(attack.key.name, []).append(attack.value)
    return found


@pytest.mark.parametrize("plugin", registry.plugins(), ids=lambda plugin: plugin.name)
def test_every_key_that_names_topics_or_connects_is_attacked(attacked, plugin, tmp_path):
    base = {**Attacks("g", tmp_path, tmp_path).base(plugin.name), **(ROUTER if plugin.kind == "source" else {})}
    for key in ConnectorCatalog().definition(plugin).of(base).keys.values():
        is_text = key.type in TEXTS and key.has_effect and not key.recommended and key.name not in CHOSEN
        if key.topics or key.type == "CLASS" or (key.connects and is_text):
            assert key.name in CHOSEN or not key.has_effect or attacked[plugin.name][key.name], key.name


@pytest.mark.parametrize(("plugin", "names"), NAMED.items(), ids=NAMED)
def test_keys_whose_names_tell_little_are_attacked(attacked, plugin, names):
    assert [name for name in names if not attacked[plugin].get(name)] == []


def test_properties_are_attacked_by_pairs_of_name_and_value(attacked):
    assert set(PAIRS) <= set(attacked["spark"])
    assert all("=" in value for value in attacked["spark"]["spark.properties"])
