"""What clients have committed is known after every kind of end, also that of the program."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak import ledger as ledgers
from tests.soak.checks import ledger_difference
from tests.soak.ledger import Ledger, LedgerFile, Transfer

ONE = Transfer("a-1", 3, 5, 7)
TWO = Transfer("a-2", 5, 3, 2)


def moved_in(path: Path) -> dict[int, int]:
    file = LedgerFile(path)
    file.close()
    return dict(file.ledger.moved)


def test_only_committed_transfers_move_money() -> None:
    ledger = Ledger().invoke(ONE).end("ok").invoke(TWO).end("fail")
    assert (ledger.invoked, ledger.ok, ledger.failed, ledger.open) == (2, 1, 1, None)
    assert ledger.moved == {3: -7, 5: 7}


@pytest.mark.parametrize(("committed", "moved"), [(True, {3: -7, 5: 7}), (False, {})])
def test_an_unknown_end_is_settled_by_the_source(committed: bool, moved: dict[int, int]) -> None:
    ledger = Ledger().invoke(ONE).end("unknown")
    assert ledger.open == ONE
    with pytest.raises(ValueError, match="a-1 is not known"):
        ledger.invoke(TWO)
    settled = ledger.settle(committed)
    assert (settled.moved, settled.unknown, settled.open) == (moved, 1, None)
    with pytest.raises(ValueError, match="no transfer is open"):
        settled.settle(True)


def test_a_file_goes_on_where_a_killed_program_left_it(tmp_path: Path) -> None:
    path = tmp_path / "ledger" / "a.jsonl"
    file = LedgerFile(path)
    file.invoke(ONE)
    file.end("ok")
    file.invoke(TWO)
    file.close()
    # The line of its end was cut off.
    with path.open("a") as other:
        other.write('{"end": "o')
    again = LedgerFile(path)
    assert (again.ledger.ok, again.ledger.open, again.ledger.moved) == (1, TWO, {3: -7, 5: 7})
    again.settle(True)
    again.close()
    assert moved_in(path) == {3: -5, 5: 5}


def test_a_file_stays_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledgers, "LINES_MAX", 10)
    file = LedgerFile(tmp_path / "a.jsonl")
    for number in range(100):
        file.invoke(Transfer(f"a-{number}", 1, 2, 1))
        file.end("ok")
    file.close()
    assert len((tmp_path / "a.jsonl").read_text().splitlines()) <= 11
    assert moved_in(tmp_path / "a.jsonl") == {1: -100, 2: 100}


def test_balances_that_are_not_the_ledgers_are_told() -> None:
    ledger = Ledger().invoke(ONE).end("ok")
    balances = dict.fromkeys(range(60), 1000) | {3: 993, 5: 1_007}
    assert ledger_difference([ledger], (["id", "balance"], list(balances.items()))) == ""
    del balances[9]
    assert "1 balances" in ledger_difference([ledger], (["id", "balance"], list(balances.items())))
    assert "(accounts [3, 5, 9])" in ledger_difference([Ledger()], (["id", "balance"], list(balances.items())))
