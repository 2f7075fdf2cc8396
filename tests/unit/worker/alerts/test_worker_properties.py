"""The properties of alerts: the topic is the cluster's own, and no connector can read the file."""

from __future__ import annotations

import pytest
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.config.alert_properties import ALERTS_FILE, alerts_topic
from cdcworker.worker.config.config_providers import FILE_PATHS_KEY
from cdcworker.worker.config.worker_properties import load
from cdcworker.worker.server.wiring import check_unreadable


@pytest.mark.parametrize(
    ("more", "topic"),
    [("", ""), ("alerts.topic=x", ""), ("alerts.file=/a", "g.alerts"), ("alerts.file=/a\nalerts.topic=x", "x")],
)
def test_the_topic_is_the_clusters_own_while_somebody_is_told(tmp_path, more, topic):
    path = tmp_path / "worker.properties"
    path.write_text(f"bootstrap.servers=k:1\ngroup.id=g\n{more}\n")
    config, _ = load(path)
    assert alerts_topic(config.values, config.group_id) == topic
    assert ("g.alerts" in config.own_topics, "x" in config.own_topics) == (topic == "g.alerts", topic == "x")


def test_a_file_that_references_of_connectors_could_read_is_refused(tmp_path):
    file = tmp_path / "alerts.yaml"
    file.touch()
    check_unreadable(ALERTS_FILE, str(file), {})
    with pytest.raises(CdcError, match="connectors could read it"):
        check_unreadable(ALERTS_FILE, str(file), {FILE_PATHS_KEY: str(tmp_path)})
