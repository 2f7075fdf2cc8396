"""One contract for all backends of coordination: the broker's group, a lock in ZooKeeper, memory."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

_spec = importlib.util.spec_from_file_location("backend_contract", Path(__file__).with_name("backend_contract.py"))
assert _spec is not None
assert _spec.loader is not None
contract = importlib.util.module_from_spec(_spec)
sys.modules["backend_contract"] = contract
_spec.loader.exec_module(contract)

BACKENDS = [
    pytest.param("memory"),
    pytest.param("kafka", marks=pytest.mark.kafka),
    pytest.param("zookeeper", marks=pytest.mark.zookeeper),
]


@pytest.mark.parametrize("backend", BACKENDS)
class TestBackend(contract.BackendContract):
    @pytest.fixture
    def rig(self, backend, request):
        if backend == "memory":
            made = contract.MemoryRig()
        elif backend == "kafka":
            made = contract.KafkaRig(request.getfixturevalue("kafka"))
        else:
            made = contract.ZooKeeperRig(request.getfixturevalue("kafka"), request.getfixturevalue("zookeeper"))
        with contract.opened(made) as opened:
            yield opened
