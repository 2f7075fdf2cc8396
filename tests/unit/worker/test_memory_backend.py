"""The contract of all backends, on the one without servers."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

_path = Path(__file__).parents[2] / "integration" / "backend_contract.py"
_spec = importlib.util.spec_from_file_location("backend_contract_of_memory", _path)
assert _spec is not None
assert _spec.loader is not None
contract = importlib.util.module_from_spec(_spec)
sys.modules["backend_contract_of_memory"] = contract
_spec.loader.exec_module(contract)


class TestMemory(contract.BackendContract):
    @pytest.fixture
    def rig(self):
        with contract.opened(contract.MemoryRig()) as opened:
            yield opened
