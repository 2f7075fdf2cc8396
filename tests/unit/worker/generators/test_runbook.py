"""The manual of error codes has three parts for each: what it means, what was kept safe, what to do."""

import json

import pytest
from cdcworker.schemas.errors import CODES
from cdcworker.worker.cli.commands.info import errors
from cdcworker.worker.generators import runbook
from cdcworker.worker.generators.reference import import_all, pages
from click.testing import CliRunner

import_all()
OURS = sorted((code for code in CODES.values() if not code.name.startswith("test.")), key=lambda code: code.name)


@pytest.mark.parametrize("code", OURS, ids=lambda code: code.name)
def test_a_code_says_what_it_means_what_was_kept_and_what_to_do(code):
    for text in (code.title, runbook.kept(code), code.hint):
        assert len(text) >= 8, "what is kept safe under a new code stands in worker/generators/runbook.py"


def test_no_entry_of_the_manual_is_left_over():
    assert runbook.unused() == []


def test_the_command_and_the_reference_show_all_three():
    page = CliRunner().invoke(errors, ["postgres.slot_lost"]).output
    code = CODES["postgres.slot_lost"]
    for text in (code.title, runbook.GAP, code.hint):
        assert text in page
    shown = json.loads(CliRunner().invoke(errors, ["postgres.slot_lost", "--json"]).output)["result"]
    assert shown["kept"] == runbook.GAP
    section = pages()["error-codes.md"].partition("#### `postgres.slot_lost`\n")[2].partition("\n#### ")[0]
    for part in (code.kind, code.title, runbook.GAP, code.hint):
        assert part in section
