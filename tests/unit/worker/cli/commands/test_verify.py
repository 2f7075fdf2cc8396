"""`cdcworker verify`: what it says and with which exit code."""

from __future__ import annotations

import json
from dataclasses import replace

import httpx
import pytest
from cdcworker.coordinator.log.setting_records import COMPARISON
from cdcworker.worker.cli.commands import verify
from cdcworker.worker.cli.main import cli
from cdcworker.worker.diagnostics.verify import Verifier
from click.testing import CliRunner

URL = "http://leader:8083"


def table(verdict, **more):
    none = dict.fromkeys(("missing", "extra", "different", "duplicate"), 0)
    return {
        "table": "public.t", "verdict": verdict, "reason": None, "rows": {"source": 1234, "warehouse": 1233},
        "differences": none, "complete": True, "undecided": 0, "left_out": [], "found": [], "missing_columns": [], **more,
    }  # fmt: skip


def record(verdict, *tables, **more):
    result = {
        "verdict": verdict, "position": "0/10", "differences": 0, "undecided": 0, "notes": [], "seconds": 1.0,
        "tables": list(tables), **more,
    }  # fmt: skip
    return {"id": "1", "state": "done", "source": "s", "started": 1, "progress": {}, "error": None, "result": result}


@pytest.fixture
def last(connect, herder, cluster, monkeypatch):
    """Shows a record as the last comparison of `w`."""
    client = connect(herder, verifier=Verifier("leader:8083", {"providers": {}, "kafka": {}}))

    def request(method, url, **options):
        options.pop("timeout")
        options.pop("trust_env")
        return client(method, url.removeprefix(URL), **options)

    monkeypatch.setattr(httpx, "request", request)
    monkeypatch.setenv("CDC_URL", URL)
    connector = cluster.add("w", {"topics": "p.public.t"}, kind="sink")

    def show(found, *arguments):
        kept = {f"{COMPARISON}w": {"v": 1, "incarnation": connector.incarnation, **found}}
        cluster.state = replace(cluster.state, settings=kept)
        return CliRunner().invoke(cli, ["verify", "w", "--last", *arguments])

    return show


DIFFERENT = table(
    "different",
    differences={"missing": 1, "extra": 0, "different": 2, "duplicate": 0},
    found=[{"key": "abcd", "kind": "different", "columns": ["name"]}],
    missing_columns=["d"],
    left_out=[{"column": "d", "why": "not in the warehouse"}, {"column": "e", "why": "no common text"}],
)


@pytest.mark.parametrize(
    ("found", "code", "said"),
    [
        (record("equal", table("equal")), 0, "equal: 1 tables at 0/10"),
        (record("different", DIFFERENT, table("equal"), differences=3), 1,
         "DIFFERENT: 3 rows, 1 column missing in 1 of 2 tables"),
        (record("different", table("different", missing_columns=["d"])), 1,
         "DIFFERENT: 1 column missing in 1 of 1 tables"),
        (record("different", table("different", reason="the table is not in the warehouse")), 1,
         "DIFFERENT: everything in 1 of 1 tables"),
        (record("undecided", table("undecided", undecided=1), undecided=1), 3, "undecided: 1 row never stood still"),
        (record("undecided", table("undecided", complete=False)), 3,
         "undecided: too many rows moved for each to be looked at"),
        (record("impossible", table("impossible", reason="it has no key")), 3, "not compared: 1 of 1 tables"),
        (record("impossible", table("equal"), table("impossible", reason="the sink holds it back: why")), 3,
         "not compared: 1 of 2 tables; the others are equal"),
    ],
)  # fmt: skip
def test_the_last_line_says_what_the_exit_code_means(found, code, said):
    assert (verify.exit_code(found), verify.summary(found)) == (code, said)


def test_a_difference_is_told_with_its_kinds_keys_and_columns():
    shown = list(
        verify.lines({"connector": "w", **record("different", DIFFERENT, differences=3)}, colour=False, keys=False)
    )
    text = "\n".join(shown)
    assert "public.t         1,234         1,233  different" in text
    assert "1 row missing in the warehouse" in text
    assert "2 rows different" in text
    assert "different  #abcd  (name)" in text
    assert "columns missing in the warehouse: d" in text
    assert "column d:" not in text
    assert "not compared: column e: no common text" in text


def test_the_last_comparison_is_shown_and_its_verdict_is_the_exit_code(last):
    shown = last(record("different", DIFFERENT, differences=3))
    assert shown.exit_code == 1
    assert shown.output.splitlines()[0] == "w compared with s at 0/10, 1 s"
    assert last(record("equal", table("equal"))).exit_code == 0
    answer = last(record("undecided", table("undecided", undecided=2), undecided=2), "--json")
    assert answer.exit_code == 3
    assert json.loads(answer.output)["ok"] is False


def test_a_comparison_that_failed_says_why(last):
    failed = {**record("equal"), "state": "failed", "result": None}
    failed["error"] = {"code": "verify.behind", "message": "the warehouse lags"}
    shown = last(failed)
    assert (shown.exit_code, shown.output) == (3, "w: [verify.behind] the warehouse lags\n")
