"""Dead letters of a DuckDB warehouse, sent again beside a task that goes on."""

from __future__ import annotations

import pytest

from tests.contract import dead_letters as contract
from tests.contract import sql_dead_letters as sql_contract
from tests.contract import versions as versions_contract

from .sink import Sink


@pytest.fixture
def open_sink(tmp_path):
    return lambda **output: Sink(tmp_path / "shop.duckdb", **output)


@pytest.mark.long
class TestRows(contract.Rows):
    pass


@pytest.mark.long
class TestBesideTask(sql_contract.BesideTask):
    pass


@pytest.mark.long
class TestLetters(versions_contract.Letters):
    pass


class TestInBrief:
    """What of the contracts says most, for the daily runs."""

    test_refused = sql_contract.BesideTask.test_a_letter_that_the_target_refuses_stays_alone
