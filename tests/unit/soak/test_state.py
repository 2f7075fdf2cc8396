"""Parts of a soak go on with each other, killed ones too; nonsense in its folder is told."""

from __future__ import annotations

import json
from pathlib import Path
from threading import Event

import pytest

from tests.soak import report
from tests.soak import state as states
from tests.soak.__main__ import alone, main
from tests.soak.growth import Verdict
from tests.soak.state import Failure, SoakError, State


def test_a_part_goes_on_where_a_killed_one_was(tmp_path: Path) -> None:
    known = states.load(tmp_path, 9, 1.0).begin("c1", "2026-01-01")
    known = known.passed(1800).hit("kill Kafka").hit("pause Kafka", skipped=True)
    states.save(tmp_path, known)
    again = states.load(tmp_path, None, 2.0).begin("c2", "2026-01-02").passed(1800).hit("kill Kafka")
    assert (again.seed, again.next_fault, again.seconds, again.finished) == (9, 3, 3600, False)
    assert (again.faults, again.skipped) == ({"kill Kafka": 2}, {"pause Kafka": 1})
    ended = again.passed(5400, ended=True).failed("lost", "a row")
    assert ended.finished
    assert ended.failures == (Failure("lost", 3, "a row"),)
    states.save(tmp_path, ended)
    assert states.load(tmp_path, 9, 2.0) == ended


def test_another_seed_is_refused(tmp_path: Path) -> None:
    states.save(tmp_path, State(9, 1.0))
    with pytest.raises(SoakError, match="a soak of seed 9, not 8"):
        states.load(tmp_path, 8, 1.0)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 1}', '{"version": 1, "seed": 1, "parts": [{"x": 1}]}'])
def test_what_is_no_state_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / states.FILE).write_text(text)
    with pytest.raises(SoakError, match="choose another SOAK_DIR"):
        states.load(tmp_path, None, 1.0)


def test_two_parts_at_once_are_refused(tmp_path: Path) -> None:
    with alone(tmp_path), pytest.raises(SoakError, match="a part runs already"), alone(tmp_path):
        pass


def test_a_soak_that_had_its_hours_is_not_begun_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    states.save(tmp_path, State(9, 1.0).begin("c", "t").passed(3600, ended=True))
    assert main(["--folder", str(tmp_path), "--hours", "1"], Event()) == 2
    assert "has had its 1 hours" in capsys.readouterr().err


@pytest.mark.parametrize("hours", ["0", "-1", "nan", "inf", "x"])
def test_times_that_are_none_are_refused(hours: str) -> None:
    with pytest.raises(SystemExit):
        main(["--hours", hours], Event())


def test_the_page_says_what_is_unfinished_lost_and_grows(tmp_path: Path) -> None:
    (tmp_path / "assets").mkdir()
    known = State(9, 10.0).begin("c" * 40, "2026-01-01").hit("kill Kafka").passed(1800).failed("lost", "1 missing")
    found = report.result(known, {"worker: threads": Verdict("grows", 10, 30, 5.0)})
    report.write(tmp_path, tmp_path, found)
    text = (tmp_path / "soak.md").read_text()
    for part in (
        "**Unfinished**: 0.5 of 10 hours",
        "| rows lost, rows doubled | 1, 0 |",
        "| figures that grow | worker: threads |",
        "| kill Kafka | 1 |",
        "- Before fault 1, lost: 1 missing",
        "| worker: threads | 10 | 30 | grows |",
    ):
        assert part in text
    assert (
        json.loads((tmp_path / "assets" / "soak.json").read_text())
        == found
        == json.loads((tmp_path / report.FILE).read_text())
    )
    done = report.page(report.result(known.passed(36_000, ended=True), {}))
    assert "Finished: 10 hours." in done
    assert "Unfinished" not in done
