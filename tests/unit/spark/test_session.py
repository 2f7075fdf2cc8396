"""What is done while Java starts."""

from __future__ import annotations

import sys

from cdcworker.connectors.spark import session
from cdcworker.connectors.spark.session import Runtime


class Gateway:
    def __init__(self, *arguments):
        self.alive = True

    def connect(self, ends):
        pass

    def close(self):
        pass


def test_a_session_starts_where_the_native_part_was_not_built(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "cdcworker.connectors.spark._native", None)
    monkeypatch.delattr("cdcworker.connectors.spark._native", raising=False)
    monkeypatch.setattr(session, "Gateway", Gateway)
    monkeypatch.setattr(session, "_build", lambda gateway, touch: "a session")
    engine = session.Engine(Runtime("java", ()), tmp_path, lambda: False)
    assert engine.session() == "a session"
