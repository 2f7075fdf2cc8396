"""What the child that asks a source's database says holds no secret, whether a reference led to it or a config held it."""

from __future__ import annotations

import json

import pytest
from cdcworker.connectors.api.source import Leftover, TranslatedOffset
from cdcworker.schemas.errors import INTERNAL, CdcError
from cdcworker.worker.offsets import source_child

SECRET = "plain secret of a config"


class Source:
    """A source whose texts quote its password."""

    def verify_position(self, _task, position):
        if position["bad"]:
            raise CdcError(INTERNAL, f"refused for {SECRET}", where={"text": SECRET})
        return f"away: {SECRET}"

    def is_debezium_offset(self, _offset):
        return True

    def from_debezium(self, _task, offset):
        if offset["bad"]:
            raise CdcError(INTERNAL, f"refused for {SECRET}", where={"text": SECRET})
        return TranslatedOffset({"place": SECRET}, [f"note of {SECRET}"])

    def to_debezium(self, _task, position):
        return self.from_debezium(0, position)

    def moved_position(self, _task, position, _to):
        return self.from_debezium(0, position)

    def leftovers(self):
        return []

    def drop_leftovers(self, _request):
        yield Leftover("slot", "s"), CdcError(INTERNAL, f"still used by {SECRET}", where={"by": SECRET})


@pytest.fixture(autouse=True)
def source(monkeypatch):
    def connector_of(_config, _providers, secrets):
        secrets.append(SECRET)
        return Source()

    monkeypatch.setattr(source_child, "connector_of", connector_of)


@pytest.mark.parametrize("more", [
    {"do": "verify", "positions": [[0, 0, {"bad": True}]]}, {"do": "verify", "positions": [[0, 0, {"bad": False}]]},
    {"do": "from_debezium", "positions": [[0, 0, {"bad": True}]]}, {"do": "from_debezium", "positions": [[0, 0, {"bad": False}]]},
    {"do": "to_debezium", "positions": [[0, 0, {"bad": True}]]}, {"do": "to_debezium", "positions": [[0, 0, {"bad": False}]]},
    {"do": "move", "to": "now", "positions": [[0, 0, {"bad": True}]]}, {"do": "move", "to": "now", "positions": [[0, 0, {"bad": False}]]},
    {"do": "drop", "spared": [], "kinds": ["slot"], "connector": "c", "group": "g"},
])  # fmt: skip
def test_no_text_holds_a_secret(more):
    told = json.dumps(source_child.answer({"config": {}, "providers": {}, **more}))
    assert SECRET not in told
    assert "****" in told
