"""One contract for all backends of coordination: the broker's group, a lock in ZooKeeper, memory."""

from __future__ import annotations

import pytest

from tests.contract import backends as contract

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
