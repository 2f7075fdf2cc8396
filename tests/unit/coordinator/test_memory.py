"""The contract of all backends, on the one without servers."""

from __future__ import annotations

import pytest

from tests.contract import backends as contract


class TestMemory(contract.BackendContract):
    @pytest.fixture
    def rig(self):
        with contract.opened(contract.MemoryRig()) as opened:
            yield opened
