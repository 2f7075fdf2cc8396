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


# -- repairs ------------------------------------------------------------------------------------------------------------


class FakeWorker:
    """A worker whose comparisons find so many differing rows, one after the other; its source reads rows as `state` says."""

    def __init__(self, *differing, state="COMPLETED", complete=True, refused=(), replaced=0):
        self.replaced = replaced
        """So many requests for a batch come when another comparison has taken the place of theirs."""
        self.differing, self.state, self.complete, self.refused = differing, state, complete, list(refused)
        self.asked, self.compared = [], 0

    def request(self, method, url, **_):
        path, _, query = url.removeprefix(URL).partition("?")
        self.asked.append((method, path.removeprefix("/v1/connectors/"), query))
        if method == "POST" and path.endswith("/verify"):
            self.compared += 1
        rows = self.differing[max(0, self.compared - 1)]
        if method == "POST" and "batch=" in query and self.replaced:
            self.replaced -= 1
            error = {"error_code": 409, "code": "repair.no_comparison", "message": "compared again since"}
            return httpx.Response(409, json=error, request=httpx.Request(method, url))
        found = self.answered(path, query, rows)
        return httpx.Response(200, json=found, request=httpx.Request(method, url))

    def answered(self, path, query, rows):
        if path.endswith("/snapshots/j1"):
            error = {"code": "postgres.snapshot_refused", "message": "not so"} if self.state == "FAILED" else None
            return {"id": "j1", "state": self.state, "rows": 3, "waits_for": "", "error": error}
        if path.endswith("/verify/repair"):
            counts = {"missing": rows, "different": 0, "extra": 0}
            one = {"table": "public.t", **counts, "complete": self.complete, "refused": self.refused}
            tables = [one] if rows or self.refused else []
            plan = {"source": "s", "comparison": "c", "rows": rows, "batches": min(2, rows), "tables": tables}
            return {**plan, "dry_run": True} if "dry_run" in query else {**plan, "snapshot": "j1"}
        verdict = "different" if rows or self.refused else "equal"
        one = table(verdict, found=[{"key": "abcd", "kind": "missing", "columns": []}] if rows else [])
        return {**record(verdict, one, differences=rows), "connector": "w", "id": str(self.compared)}

    def changes(self):
        return [query for method, path, query in self.asked if path.endswith("/repair") and "dry_run" not in query]


@pytest.fixture
def repair(monkeypatch):
    """Runs `verify w --repair` against a worker."""

    def run(worker, *arguments):
        monkeypatch.setattr(httpx, "request", worker.request)
        monkeypatch.setenv("CDC_URL", URL)
        return CliRunner().invoke(cli, ["verify", "w", "--repair", *arguments])

    return run


def test_rows_are_repaired_batch_by_batch_until_nothing_differs(repair):
    worker = FakeWorker(5, 1, 0)
    shown = repair(worker)
    assert (shown.exit_code, worker.compared) == (0, 3), shown.output
    assert worker.changes() == ["comparison=c&batch=0", "comparison=c&batch=1", "comparison=c&batch=0"]
    assert shown.stdout.splitlines()[-1] == "repaired: 9 rows in 2 rounds"
    assert "to repair: public.t: 5 missing" in shown.stderr
    assert "6 of 5 rows were read and handed on; comparing again" in shown.stderr
    assert ("GET", "s/snapshots/j1", "") in worker.asked


def test_a_repair_that_changes_nothing_ends_with_a_code(repair):
    worker = FakeWorker(3, 3)
    shown = repair(worker)
    assert (shown.exit_code, worker.compared) == (1, 2)
    assert "[repair.unrepaired] 3 differing rows are left in 1 of the tables, 6 rows were repaired" in shown.stderr
    answer = repair(FakeWorker(3, 3), "--json")
    told = json.loads(answer.stdout)
    assert (answer.exit_code, told["ok"], told["error"]["code"]) == (1, False, "repair.unrepaired")
    assert told["result"]["repair"]["rows"] == 6


def test_rows_that_a_comparison_had_no_room_for_are_taken_by_the_next(repair):
    worker = FakeWorker(3, 3, 3, 0, complete=False)
    assert (repair(worker).exit_code, worker.compared) == (0, 4)


def test_where_another_comparison_has_come_between_it_is_compared_again(repair):
    worker = FakeWorker(3, 3, 0, replaced=1)
    assert (repair(worker).exit_code, worker.compared) == (0, 3)


def test_what_is_refused_is_named_and_nothing_is_asked_for(repair):
    worker = FakeWorker(0, refused=[{"rows": 2, "why": "twice"}])
    shown = repair(worker)
    assert (shown.exit_code, worker.changes(), worker.compared) == (1, [], 1)
    assert "not repaired: public.t: 2 rows: twice" in shown.stdout
    assert shown.stdout.splitlines()[-1] == "nothing that can be repaired"
    assert "[repair.unrepaired]" in shown.stderr


def test_differing_rows_are_listed_only_with_their_keys(repair):
    for arguments, is_listed in (((), False), (("--show-keys",), True)):
        shown = repair(FakeWorker(5), "--dry-run", *arguments)
        assert ("abcd" in shown.stdout) is is_listed, shown.stdout


def test_a_trial_compares_counts_and_changes_nothing(repair):
    worker = FakeWorker(5)
    shown = repair(worker, "--dry-run")
    assert (shown.exit_code, worker.changes(), worker.compared) == (1, [], 1)
    assert shown.stdout.splitlines()[-2:] == ["to repair: public.t: 5 missing", "5 rows of s to be read in 2 batches"]
    assert shown.stderr == ""
    assert repair(FakeWorker(0), "--dry-run").exit_code == 0


def test_a_trial_of_the_last_comparison_begins_none_and_reads_none(repair):
    worker = FakeWorker(5)
    shown = repair(worker, "--dry-run", "--last")
    assert (shown.exit_code, worker.asked) == (1, [("POST", "w/verify/repair", "dry_run=true")])
    assert "to repair: public.t: 5 missing" in shown.stdout
    assert repair(FakeWorker(0), "--dry-run", "--last").exit_code == 0


@pytest.mark.parametrize(("state", "code"), [("FAILED", "postgres.snapshot_refused"), ("CANCELLED", "repair.stalled")])
def test_a_source_that_does_not_read_the_rows_ends_the_repair(repair, state, code):
    shown = repair(FakeWorker(5, 5, state=state))
    assert shown.exit_code == 3
    assert f"[{code}]" in shown.stderr


def test_a_source_that_reads_nothing_is_not_waited_for_for_ever(repair, monkeypatch):
    monkeypatch.setattr("cdcworker.worker.cli.client.repair.STALLED_S", -1.0)
    shown = repair(FakeWorker(5, 5, state="PENDING"))
    assert shown.exit_code == 3
    assert "[repair.stalled] the snapshot j1 of s is PENDING" in shown.stderr


@pytest.mark.parametrize("arguments", [["--last"], ["--last", "--table", "public.t"]])
def test_a_repair_of_the_last_comparison_is_a_wrong_use(repair, arguments):
    assert repair(FakeWorker(5), *arguments).exit_code == 2
    assert CliRunner().invoke(cli, ["verify", "w", "--dry-run"]).exit_code == 2
