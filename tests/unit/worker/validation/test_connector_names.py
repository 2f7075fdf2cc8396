"""The names of connectors, by the definitions of the real plugins: what a worker asks of each, whatever it connects."""

import pytest
from cdcworker.connectors.registry import names as registry
from cdcworker.worker.validation.validate import ConnectorCatalog, check_keys

PLUGINS = [plugin.name for plugin in registry.plugins()]
REFUSED = ["", " ", "a\x00b", "a\x01b", "a\nb", "\x1b[31m", "a\x7f", "a\x85b", "x" * 250]
TAKEN = ["a/b", "a%2Fb", "..", "a;b", "a\\b", "a b", "ä€", "<script>", "x" * 249]


def problems(plugin, **config):
    found = check_keys(ConnectorCatalog(), {"connector.class": plugin, "topic.prefix": "x", **config}).errors
    return [finding for finding in found if finding.key in ("name", "connector.class")]


@pytest.mark.parametrize("plugin", PLUGINS)
class TestEveryPlugin:
    @pytest.mark.parametrize("name", REFUSED)
    def test_refuses_a_name_that_no_path_or_log_could_show(self, plugin, name):
        assert [finding.key for finding in problems(plugin, name=name)] == ["name"]

    @pytest.mark.parametrize("name", TAKEN)
    def test_takes_any_other_name(self, plugin, name):
        assert problems(plugin, name=name) == []

    def test_asks_for_a_name(self, plugin):
        assert [finding.message for finding in problems(plugin)] == [
            'Missing required configuration "name" which has no default value.'
        ]

    def test_lists_name_and_class_first_for_those_who_draw_forms(self, plugin):
        definition = ConnectorCatalog().definition(registry.lookup(plugin))
        assert [item["name"] for item in definition.definitions()][:2] == ["name", "connector.class"]
