"""What is done while Java starts."""

from __future__ import annotations

import logging
import sys

from cdcworker.connectors.spark.runtime import session
from cdcworker.connectors.spark.runtime.session import JavaRuntime


class Gateway:
    def __init__(self, *arguments):
        self.alive = True

    def connect(self, ends):
        pass

    def close(self):
        pass


def test_a_session_starts_where_the_native_part_was_not_built(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "cdcworker.connectors.arrow._native", None)
    monkeypatch.delattr("cdcworker.connectors.arrow._native", raising=False)
    monkeypatch.setattr(session, "JavaGateway", Gateway)
    monkeypatch.setattr(session, "_build", lambda gateway, touch: "a session")
    engine = session.SparkEngine(JavaRuntime("java", ()), tmp_path, lambda: False)
    assert engine.session() == "a session"


def test_a_broken_call_is_told_by_who_made_it_and_not_by_py4j_on_the_root_logger(monkeypatch, caplog):
    from py4j import java_gateway

    class Connection:
        def send_command(self, command):
            raise java_gateway.Py4JNetworkError("gone")

        def close(self, reset):
            pass

    client = java_gateway.GatewayClient()
    monkeypatch.setattr(client, "_get_connection", Connection)
    monkeypatch.setattr(logging.getLogger(), "filters", [])
    session._quiet()
    client.send_command("c", retry=False)
    logging.getLogger().error("ours")
    assert [record.message for record in caplog.records] == ["ours"]
