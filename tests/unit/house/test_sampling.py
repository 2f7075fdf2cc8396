"""Of sampled tests CI runs a share by the seed, and the long tier runs exactly the others."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from tests import sampling


@dataclass
class Case:
    """What the choice asks of a collected test."""

    nodeid: str
    marks: list[pytest.Mark] = field(default_factory=list)

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return next((mark for mark in reversed(self.marks) if mark.name == name), None)

    def add_marker(self, mark: pytest.MarkDecorator) -> None:
        self.marks.append(mark.mark)


def run_by_ci(names: dict[str, pytest.MarkDecorator], seed: int, *asked: str) -> set[str]:
    cases = [Case(name, [mark.mark]) for name, mark in names.items()]
    config: Any = SimpleNamespace(args=asked, option=SimpleNamespace(randomly_seed=seed))
    sampling.leave_the_rest_to_the_long_tier(config, cases)  # type: ignore[arg-type]
    return {case.nodeid for case in cases if not case.get_closest_marker("long")}


EACH = {f"a.py::test_a[{number}]": pytest.mark.sampled(3) for number in range(7)}
GROUP = {f"a.py::test_{name}": pytest.mark.sampled(3, "all") for name in "bcd"}


def test_seeds_in_a_row_choose_each_case_once() -> None:
    for names in (EACH, GROUP, {"a.py::test_alone": pytest.mark.sampled(3)}):
        chosen = [run_by_ci(names, seed) for seed in (7, 8, 9)]
        assert sorted(name for found in chosen for name in found) == sorted(names)
    assert {len(run_by_ci(EACH, seed)) for seed in range(3)} == {2, 3}
    assert {len(run_by_ci(GROUP, seed)) for seed in range(3)} == {1}


def test_what_is_chosen_does_not_depend_on_what_is_collected_beside_it() -> None:
    assert run_by_ci(EACH, 5) | run_by_ci(GROUP, 5) == run_by_ci({**GROUP, **EACH}, 5)


def test_what_the_command_line_names_runs() -> None:
    assert set(EACH) == run_by_ci(EACH, 1, "a.py::test_a")
    assert all(name in run_by_ci(EACH, seed, name) for name in EACH for seed in range(3))
    assert run_by_ci(EACH, 1, "a.py") == run_by_ci(EACH, 1)


def test_what_is_long_anyhow_is_no_part_of_a_group() -> None:
    group = {**GROUP, "a.py::test_aa": pytest.mark.long}
    assert run_by_ci(group, 4) == run_by_ci(GROUP, 4)
