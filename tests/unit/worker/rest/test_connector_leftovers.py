"""What is spared when a connector's leftovers are dropped."""

from types import SimpleNamespace

import pytest
from cdcworker.coordinator.model import ClusterState
from cdcworker.worker.rest.connector_leftovers import left_behind, used_by_others


def source(name, host, slot="s", **more):
    config = {
        "name": name,
        "connector.class": "postgres",
        "database.hostname": host,
        "database.dbname": "d",
        "database.user": "u",
        "topic.prefix": name,
        "slot.name": slot,
        "publication.name": f"{slot}_pub",
        **more,
    }
    return SimpleNamespace(name=name, kind="source", config=config)


@pytest.mark.parametrize("host", ["db", "DB", "db.local", "${env:DB_HOST}", "10.0.0.7"])
def test_a_slot_that_another_connector_names_is_spared_however_its_server_is_written(host):
    own, other = source("own", host), source("other", "db")
    view = SimpleNamespace(state=ClusterState(connectors={"own": own, "other": other}))
    assert used_by_others(view, own) == {("slot", "s"), ("publication", "s_pub")}


def test_topics_from_before_a_reset_are_left_too():
    view = SimpleNamespace(
        state=ClusterState(), topics={"own": frozenset({"now"})}, former_topics={"own": frozenset({"now", "before"})}
    )
    assert left_behind(view, source("own", "db"))["topics"] == ["before", "now"]
    sink = SimpleNamespace(name="own", kind="sink", config={"connector.class": "file-sink"})
    assert "topics" not in left_behind(view, sink)


def test_what_no_other_connector_names_is_not_spared():
    own, other = source("own", "db"), source("other", "db", slot="t")
    broken = SimpleNamespace(name="broken", kind="source", config={"connector.class": "no.such.Class"})
    view = SimpleNamespace(state=ClusterState(connectors={"own": own, "other": other, "broken": broken}))
    assert used_by_others(view, own) == set()
