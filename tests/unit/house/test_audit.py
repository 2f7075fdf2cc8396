"""The audit of locked packages fails where nobody would read that it got no answer."""

from __future__ import annotations

import pytest

from tests import audit


@pytest.fixture
def run(monkeypatch):
    """Runs it where the auditor finds `code` for each lock; returns its exit code."""
    for name in ("CI", "CDC_REQUIRE_PARTS"):
        monkeypatch.delenv(name, raising=False)

    def run(code, **variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        command = None if code is None else ["audit"]
        monkeypatch.setattr(audit, "auditor", lambda folder: (command, "no network"))
        monkeypatch.setattr(audit, "audit", lambda command, lock: (code, "said"))
        return audit.main()

    return run


def test_no_answer_is_an_error_in_ci_only(run, capsys):
    assert run(audit.NOT_RUN) == 0
    assert "NOT RUN: " in capsys.readouterr().out
    for variables in ({"CI": "true"}, {"CI": "1"}, {"CDC_REQUIRE_PARTS": "1"}):
        assert run(audit.NOT_RUN, **variables) == 1


def test_an_auditor_that_cannot_be_installed_is_no_answer(run):
    assert run(None) == 0
    assert run(None, CI="true") == 1


@pytest.mark.parametrize("variables", [{}, {"CI": "true"}])
def test_a_hole_is_an_error_everywhere_and_none_is_none(run, variables):
    assert run(audit.HOLES, **variables) == 1
    assert run(0, **variables) == 0


def test_the_tests_do_not_ask_the_registry():
    text = (audit.ROOT / "Makefile").read_text()
    before = [line for line in text.splitlines() if line.startswith(("test:", "test-long:", "lint:"))]
    assert len(before) == 3
    assert not any("audit" in line for line in before)
    assert "audit" not in (audit.ROOT / ".ci" / "run").read_text()
