"""Verify over REST: begun by the leader, told by everyone, kept as a record, begun again when it is due."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import pytest
from cdcworker.coordinator.log.setting_records import COMPARISON, readable
from cdcworker.coordinator.model import PutJob
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.diagnostics.verify import Verifier, VerifyRequest, source_of
from cdcworker.worker.rest.resources.targets import verify
from cdcworker.worker.rest.resources.targets.verify import VerifySchedule
from cdcworker.worker.security.access import Caller, Grant
from httpx import ASGITransport

PATH = "/v1/connectors/w/verify"
RESULT = {
    "verdict": "different",
    "position": "0/10",
    "differences": 1,
    "undecided": 0,
    "notes": [],
    "seconds": 1.0,
    "rows_per_s": 5.0,
    "tables": [
        {
            "table": "public.t",
            "verdict": "different",
            "found": [{"key": "abcd", "kind": "missing", "columns": []}],
        }
    ],
}
SAYS = (
    "import json, sys; question = json.load(sys.stdin); print(json.dumps({'progress': {'rows': 1}})); "
    "print('torn'); "
    f"print(json.dumps({{'result': {RESULT!r}, 'keys': {{'abcd': ['k-4711']}}}}))"
)
REPAIR = {
    "tables": [
        {
            "table": "public.t", "key": ["id"], "rows": [["k-4711"], ["k-4712"]], "deletes": True, "complete": True,
            "counts": {"missing": 1, "different": 0, "extra": 1}, "refused": [{"rows": 1, "why": "twice"}],
        }
    ]
}  # fmt: skip
REPAIRS = (
    "import json, sys; question = json.load(sys.stdin); more = {'repair': "
    f"{REPAIR!r}}} if question['repair'] else {{}}; print(json.dumps({{'result': {RESULT!r}, 'keys': {{}}, **more}}))"
)
HANGS = "import sys, time; time.sleep(600)"


def verifier(script, clock=lambda: 1000.0):
    return Verifier("leader:8083", {"providers": {}, "kafka": {}}, (sys.executable, "-c", script), clock)


@pytest.fixture
def pair(cluster):
    cluster.add("s", {"topic.prefix": "p"})
    return cluster.add("w", {"topics": "p.public.t", "verify.timeout.ms": "5000"}, kind="sink")


@pytest.fixture
def serving(connect, herder, until):
    """A client of the leader and its keeper, whose comparisons run this script."""
    made = []

    def make(script, **options):
        made.append(verifier(script, **options))
        client = connect(herder, verifier=made[-1])
        return client, VerifySchedule(client.app.state.api, made[-1]), made[-1]

    yield make
    for one in made:
        # A child that is still being started would be left behind.
        until(lambda one=one: all(run.is_over or run.child is not None for run in one.runs()), 30)
        one.stop()


def look(client, keeper):
    client._runner.run(keeper.look())


def test_a_comparison_is_begun_shown_and_kept_without_keys(serving, cluster, pair, until):
    client, keeper, runs = serving(SAYS)
    assert client.get(PATH).status_code == 404
    begun = client.post(PATH)
    assert begun.status_code == 202
    assert (begun.json()["source"], begun.json()["connector"]) == ("s", "w")
    # The child may have ended before the answer is made.
    assert begun.json()["state"] in ("running", "done")
    until(lambda: runs.get("w").is_over, 30)
    look(client, keeper)
    found = client.get(PATH).json()
    assert (found["state"], found["result"]["verdict"], found["id"]) == ("done", "different", begun.json()["id"])
    record = cluster.state.settings[f"{COMPARISON}w"]
    assert record["state"] == "done"
    assert "4711" not in json.dumps(record) + json.dumps(found)
    (item,) = client.get(f"{PATH}?keys=true").json()["result"]["tables"][0]["found"]
    assert item["values"] == ["k-4711"]


def test_what_the_sink_holds_back_is_told_to_the_child(serving, cluster, pair, until):
    says = (
        "import json, sys; held = json.load(sys.stdin)['held']; "
        f"print(json.dumps({{'result': {{**{RESULT!r}, 'notes': [held]}}}}))"
    )
    cluster.report("w", 0, "RUNNING", metrics={"paused": {"p.public.t": "why"}, "tables_held": 1})
    client, _, runs = serving(says)
    client.post(PATH)
    until(lambda: runs.get("w").is_over, 30)
    assert runs.get("w").result["notes"] == [{"p.public.t": "why"}]


def test_what_the_source_holds_back_is_told_to_the_child(serving, cluster, pair, until):
    says = (
        "import json, sys; held = json.load(sys.stdin)['held_by_source']; "
        f"print(json.dumps({{'result': {{**{RESULT!r}, 'notes': [held]}}}}))"
    )
    held = [{"table": "public.t", "code": "postgres.table_closed", "message": "m", "since_ms": 1}, {"table": "odd"}, 7]
    cluster.report("s", 0, "RUNNING", metrics={"quarantine": held, "tables_held": 1})
    cluster.report("other", 0, "RUNNING", metrics={"quarantine": [{**held[0], "table": "public.u"}]})
    client, _, runs = serving(says)
    client.post(PATH)
    until(lambda: runs.get("w").is_over, 30)
    assert runs.get("w").result["notes"] == [{"public.t": "postgres.table_closed"}]


def test_every_worker_tells_what_the_record_says(serving, connect, make_herder, cluster, pair, until):
    client, keeper, runs = serving(SAYS)
    client.post(PATH)
    until(lambda: runs.get("w").is_over, 30)
    look(client, keeper)
    follower = connect(make_herder(leads=False), verifier=verifier(SAYS))
    found = follower.get(PATH)
    assert (found.status_code, found.json()["result"]["differences"]) == (200, 1)


def test_a_comparison_that_is_not_on_record_yet_is_told_by_the_leader(serving, connect, make_herder, cluster, pair):
    client, _, _ = serving(HANGS)
    follower = connect(make_herder(leads=False), verifier=verifier(SAYS), transport=ASGITransport(client.app))
    assert follower.get(PATH).status_code == 404
    begun = client.post(PATH).json()
    assert f"{COMPARISON}w" not in cluster.state.settings
    found = follower.get(PATH)
    assert (found.status_code, found.json()["id"], found.json()["state"]) == (200, begun["id"], "running")


def test_a_trial_names_the_source_and_begins_nothing(serving, pair):
    client, _, runs = serving(HANGS)
    answer = client.post(f"{PATH}?dry_run=true")
    assert (answer.status_code, answer.json()) == (
        200,
        {"dry_run": True, "connector": "w", "effect": "compared", "source": "s"},
    )
    assert runs.runs() == []


def test_who_has_no_right_on_the_source_learns_nothing_of_its_rows(serving, pair, until, monkeypatch):
    client, keeper, runs = serving(SAYS)
    assert client.post(PATH).status_code == 202
    until(lambda: runs.get("w").is_over)
    caller = Caller("w-team", (Grant("operate", "w"),), "token")
    monkeypatch.setattr("cdcworker.worker.rest.resources.targets.verify.caller_of", lambda scope: caller)
    assert client.post(PATH).status_code == 403
    for source in ("s", "nobody"):
        assert client.post(f"{PATH}?source={source}").status_code == 403, "no answer tells which sources there are"
    assert client.get(f"{PATH}?keys=true").status_code == 403
    assert client.get(PATH).status_code == 403, "names of tables and columns, and how many rows differ"
    look(client, keeper)
    runs.__init__("leader:8083", {}, ())
    assert client.get(PATH).status_code == 403, "the record tells what the run did"


def test_one_sink_is_compared_once_at_a_time(serving, pair, until):
    client, _, runs = serving(HANGS)
    assert client.post(PATH).status_code == 202
    again = client.post(PATH)
    assert (again.status_code, again.json()["code"]) == (409, "verify.busy")
    until(lambda: runs.get("w").child is not None, 30)
    runs.stop()
    until(lambda: runs.get("w").is_over, 30)
    assert client.get(PATH).json()["error"]["code"] == "verify.interrupted"


@pytest.mark.parametrize("path", [PATH.replace("/w/", "/s/"), f"{PATH}?source=nobody", f"{PATH}?source=w"])
def test_what_cannot_be_compared_is_refused(serving, pair, path):
    answer = serving(SAYS)[0].post(path)
    assert (answer.status_code, answer.json()["code"]) == (400, "verify.unfit")


def test_a_worker_that_compares_nothing_says_so_and_an_unknown_connector_is_404(client, serving, cluster):
    cluster.add("w", kind="sink")
    assert client.post(PATH).status_code == 501
    assert serving(SAYS)[0].post("/v1/connectors/x/verify").status_code == 404


def test_a_comparison_is_due_so_long_after_the_last_one(serving, cluster, until):
    cluster.add("s", {"topic.prefix": "p"})
    cluster.add("w", {"topics.regex": r"p\..*", "verify.interval.ms": "60000"}, kind="sink", created_ms=1_000)
    now = [60.0]
    client, keeper, runs = serving(SAYS, clock=lambda: now[0])
    client.app.state.api.clock = lambda: now[0]
    look(client, keeper)
    assert runs.runs() == []
    now[0] = 61.0
    look(client, keeper)
    until(lambda: runs.get("w").is_over, 30)
    first = runs.get("w").id
    look(client, keeper)
    assert cluster.state.settings[f"{COMPARISON}w"]["by"] == "schedule"
    now[0] = 120.0
    look(client, keeper)
    assert runs.get("w").id == first
    now[0] = 121.0
    look(client, keeper)
    assert runs.get("w").id != first
    until(lambda: runs.get("w").is_over, 30)


@pytest.fixture
def scheduled(serving, cluster):
    """Makes sinks of one source that are due, by name, bound and interval; returns a function that looks, the comparisons and
    the clock."""

    def make(**sinks):
        now = [1000.0]
        cluster.add("s", {"topic.prefix": "p"})
        for name, (prefixes, interval) in sinks.items():
            config = {"topics": "p.public.t", "verify.interval.ms": interval}
            cluster.add(name, config, kind="sink", topic_prefixes=prefixes)
        client, keeper, runs = serving(HANGS, clock=lambda: now[0])
        client.app.state.api.clock = lambda: now[0]
        return client, lambda: look(client, keeper), runs, now

    return make


def compared(runs):
    return sorted(run.connector for run in runs.runs() if not run.is_over)


def end_all(runs, until):
    for run in runs.runs():
        until(lambda run=run: run.child is not None, 30)
    runs.stop()
    until(lambda: compared(runs) == [], 30)


def test_a_stored_interval_that_is_too_short_counts_as_the_shortest_and_the_log_says_so_once(
    scheduled, cluster, until, caplog
):
    _client, look, runs, now = scheduled(w=((), "1"))
    look()
    assert compared(runs) == ["w"]
    end_all(runs, until)
    ended = runs.get("w").id
    for later in (1000.5, 1059.0):
        now[0] = later
        look()
        assert runs.get("w").id == ended
    now[0] = 1061.0
    look()
    assert runs.get("w").id != ended
    assert caplog.text.count("verify.interval.ms is too short and counts as 60000 connector=w") == 1


def test_the_sink_that_waits_longest_is_compared_next_however_often_others_are_due(scheduled, until):
    _client, look, runs, now = scheduled(a=((), "1"), b=((), "1"), c=((), "60000"), d=((), "120000"))
    turns = []
    for _ in range(4):
        look()
        turns.append(compared(runs))
        end_all(runs, until)
        now[0] += 61
    assert turns == [["a", "b"], ["c", "d"], ["a", "b"], ["c", "d"]]


def test_sinks_of_one_bound_have_one_place_together(scheduled, cluster):
    client, look, runs, _now = scheduled(x=(("p.",), "60000"), y=(("p.",), "60000"), z=((), "120000"))
    look()
    assert compared(runs) == ["x", "z"]
    answer = client.post("/v1/connectors/y/verify")
    assert answer.status_code == 202, "another place for who asks"
    cluster.add("v", {"topics": "p.public.t"}, kind="sink", topic_prefixes=("p.",))
    answer = client.post("/v1/connectors/v/verify")
    assert (answer.status_code, answer.json()["code"]) == (409, "verify.busy")


def test_requests_leave_the_schedule_a_place_and_the_schedule_leaves_requests_one(scheduled, cluster):
    client, look, runs, _now = scheduled(a=((), "60000"), b=((), "60000"), c=((), "60000"), d=((), "0"), e=((), "0"))
    assert [client.post(f"/v1/connectors/{name}/verify").status_code for name in "deb"] == [202, 202, 409]
    look()
    assert compared(runs) == ["a", "d", "e"]


def test_the_schedule_leaves_a_place_for_requests(scheduled, cluster):
    client, look, runs, _now = scheduled(a=((), "60000"), b=((), "60000"), c=((), "60000"), d=((), "0"))
    look()
    assert compared(runs) == ["a", "b"]
    assert client.post("/v1/connectors/d/verify").status_code == 202


def test_long_comparisons_of_the_schedule_give_way_to_others_but_for_one(scheduled, cluster, until):
    _client, look, runs, now = scheduled(a=((), "60000"), b=((), "61000"))
    look()
    assert compared(runs) == ["a", "b"]
    for name in "ab":
        until(lambda name=name: runs.get(name).child is not None, 30)
    now[0] += 3_601
    look()
    assert compared(runs) == ["a", "b"], "nobody waits"
    cluster.add("c", {"topics": "p.public.t", "verify.interval.ms": "60000"}, kind="sink")
    look()
    until(lambda: len(compared(runs)) == 1, 30)
    look()
    assert compared(runs) in (["a", "c"], ["b", "c"])
    (ended,) = [run for run in runs.runs() if run.is_over]
    assert (ended.error["code"], "had run for an hour" in ended.error["message"]) == ("verify.timeout", True)


def test_to_look_is_cheap_with_many_sinks(serving, cluster, monkeypatch):
    """No record is read twice, and comparisons that cannot be made are so many at a time: other requests wait meanwhile."""
    config = {"topics": "p.public.t", "verify.interval.ms": "60000"}
    record = {"v": 1, "id": "x", "incarnation": "inc-1", "state": "done", "started": 1, "ended": 900_000}
    for number in range(50):
        cluster.add(f"w{number}", config, kind="sink")
    settings = {f"{COMPARISON}w{number}": record for number in range(50)}
    cluster.state = replace(cluster.state, settings=settings)
    client, keeper, _ = serving(SAYS)
    read, now = [], [901.0]
    client.app.state.api.clock = lambda: now[0]
    monkeypatch.setattr(verify, "readable", lambda parse, found: read.append(found) or readable(parse, found))
    look(client, keeper)
    assert len(read) == 50
    look(client, keeper)
    assert len(read) == 50
    now[0] = 961.0
    failed = []
    for _ in range(3):
        look(client, keeper)
        failed.append(sum(item["state"] == "failed" for item in cluster.state.settings.values()))
    assert failed == [20, 40, 50]


def test_a_schedule_without_a_source_is_a_failed_comparison_and_not_one_each_second(serving, cluster):
    cluster.add("w", {"topics": "p.public.t", "verify.interval.ms": "1000"}, kind="sink")
    client, keeper, runs = serving(SAYS)
    client.app.state.api.clock = lambda: 1000.0
    look(client, keeper)
    first = cluster.state.settings[f"{COMPARISON}w"]
    assert (first["state"], first["error"]["code"]) == ("failed", "verify.unfit")
    look(client, keeper)
    assert cluster.state.settings[f"{COMPARISON}w"] == first
    assert runs.runs() == []


@pytest.mark.parametrize("pattern", [r"billing\..*", ".*"])
def test_the_schedule_compares_a_bounded_sink_with_no_source_of_others(serving, cluster, pattern):
    """The leader would open the source's database with the source's login, and send keys of its rows to the sink's."""
    cluster.add("billing", {"topic.prefix": "billing"})
    config = {"topics.regex": pattern, "verify.interval.ms": "1000"}
    cluster.add("w", config, kind="sink", topic_prefixes=("shop-",))
    client, keeper, runs = serving(HANGS)
    client.app.state.api.clock = lambda: 1000.0
    look(client, keeper)
    assert runs.runs() == []
    record = cluster.state.settings[f"{COMPARISON}w"]
    assert (record["state"], record["error"]["code"]) == ("failed", "verify.unfit")
    assert "billing" not in json.dumps(record)
    assert client.get(PATH).json()["error"]["code"] == "verify.unfit", "the sink's owner is told"
    assert client.post(f"{PATH}?dry_run=true").status_code == 400, "no topic of the source is the sink's"


@pytest.mark.parametrize(
    ("prefixes", "is_compared"),
    [((), True), (("shop-",), True), (("shop-a.",), True), (("shop-a.public.",), False), (("shop-b",), False)],
)
def test_the_schedule_compares_with_a_source_all_of_whose_topics_are_granted(serving, cluster, prefixes, is_compared):
    cluster.add("s", {"topic.prefix": "shop-a"})
    cluster.add("other", {"topic.prefix": "billing"})
    config = {"topics": "shop-a.public.t", "verify.interval.ms": "1000"}
    cluster.add("w", config, kind="sink", topic_prefixes=prefixes)
    client, keeper, runs = serving(HANGS)
    client.app.state.api.clock = lambda: 1000.0
    look(client, keeper)
    assert [run.source for run in runs.runs()] == (["s"] if is_compared else [])


def test_a_pattern_for_everything_means_the_one_source_whose_topics_a_bounded_sink_may_read(cluster):
    sources = [cluster.add(prefix, {"topic.prefix": prefix}) for prefix in ("billing", "shop-a")]
    sink = cluster.add("w", {"topics.regex": ".*"}, kind="sink", topic_prefixes=("shop-",))
    assert source_of(cluster.state, sink) == sources[1]
    part = replace(sink, topic_prefixes=("billing.public.",))
    assert source_of(cluster.state, part) == sources[0], "a person with a right on the source compares what is granted"


def test_a_comparison_whose_worker_is_gone_is_over(serving, cluster, pair):
    running = {"v": 1, "id": "x", "incarnation": "inc-1", "state": "running", "started": 1, "progress": {}}
    cluster.state = replace(cluster.state, settings={f"{COMPARISON}w": running})
    client, keeper, _ = serving(SAYS)
    look(client, keeper)
    assert cluster.state.settings[f"{COMPARISON}w"]["error"]["code"] == "verify.interrupted"
    cluster.state = replace(cluster.state, settings={f"{COMPARISON}w": {**running, "incarnation": "another"}})
    assert client.get(PATH).status_code == 404


def test_the_leader_shows_what_was_found_as_metrics(serving, pair, until):
    client, keeper, runs = serving(SAYS)
    client.post(PATH)
    until(lambda: runs.get("w").is_over, 30)
    look(client, keeper)
    text = client.get("/metrics").text
    assert 'cdc_verify_result{connector="w",result="different"} 1.0' in text
    assert 'cdc_verify_differences{connector="w"} 1.0' in text


def test_the_source_is_found_by_the_prefix_of_the_topics(cluster):
    sources = [cluster.add(name, {"topic.prefix": prefix}) for name, prefix in (("a", "p"), ("b", "p.q"), ("c", "x"))]
    sink = cluster.add("w", {"topics": "p.public.t"}, kind="sink")
    assert source_of(cluster.state, sink) == sources[0]
    assert source_of(cluster.state, sink, "c") == sources[2]
    assert source_of(cluster.state, replace(sink, config={"topics.regex": r"x\..*"})) == sources[2]
    for config in ({"topics.regex": ".*"}, {"topics": "other.t"}):
        with pytest.raises(CdcError, match="name the source"):
            source_of(cluster.state, replace(sink, config=config))


def test_the_child_gets_what_it_needs_and_secrets_stay_unresolved(cluster, pair, until):
    script = "import json, sys; q = json.load(sys.stdin); print(json.dumps({'result': {'tables': [], 'q': q}}))"
    runs = verifier(script)
    run = runs.start(cluster.state, pair, VerifyRequest(tables=("a",)), 5.0)
    until(lambda: run.is_over, 30)
    question = run.result["q"]
    assert (question["source"]["name"], question["source"]["tasks"], question["tables"]) == ("s", 1, ["a"])
    assert question["sink"]["config"]["topics"] == "p.public.t"


# -- repairs ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def for_repair(serving, pair, until):
    """A client of the leader, and its comparisons, of which one for a repair has ended."""
    client, _, runs = serving(REPAIRS)
    assert client.post(f"{PATH}?repair=true").status_code == 202
    until(lambda: runs.get("w").is_over, 30)
    return client, runs


SHOWN = {
    "connector": "w", "source": "s", "rows": 2, "batches": 1,
    "tables": [
        {"table": "public.t", "missing": 1, "different": 0, "extra": 1, "complete": True,
         "refused": [{"rows": 1, "why": "twice"}]}
    ],
}  # fmt: skip


def test_a_trial_of_a_repair_tells_numbers_and_changes_nothing(for_repair, cluster):
    client, runs = for_repair
    before = cluster.state
    answer = client.post(f"{PATH}/repair?dry_run=true")
    wanted = {"dry_run": True, "effect": "repaired", "comparison": runs.get("w").id, **SHOWN}
    assert (answer.status_code, answer.json()) == (200, wanted)
    assert cluster.state == before


def test_a_repair_is_a_snapshot_of_the_source_whose_keys_nobody_is_told(for_repair, cluster):
    client, runs = for_repair
    answer = client.post(f"{PATH}/repair?comparison={runs.get('w').id}&batch=0")
    assert (answer.status_code, answer.json()["batch"]) == (202, 0)
    (job,) = cluster.state.jobs.values()
    assert (job.connector, job.kind, job.id) == ("s", "snapshot", answer.json()["snapshot"])
    assert job.spec == {
        "tables": ["public.t"],
        "repair": {"public.t": {"key": ["id"], "rows": [["k-4711"], ["k-4712"]], "deletes": True}},
    }
    # Asked for twice it is one, until it has ended.
    assert client.post(f"{PATH}/repair").json()["snapshot"] == job.id
    told = client.get(f"/v1/connectors/s/snapshots/{job.id}")
    assert (told.status_code, told.json()["tables"]) == (200, ["public.t"])
    assert "471" not in answer.text + told.text + client.get(PATH).text + client.get("/v1/connectors/s/snapshots").text


def test_a_source_carries_out_one_repair_at_a_time(for_repair, cluster):
    client, _ = for_repair
    other = {"tables": ["public.u"], "repair": {"public.u": {"key": ["id"], "rows": [["1"]], "deletes": True}}}
    cluster.decide(PutJob("s", "snapshot", other))
    answer = client.post(f"{PATH}/repair")
    assert (answer.status_code, answer.json()["code"], len(cluster.state.jobs)) == (409, "repair.busy", 1)
    (job,) = cluster.state.jobs.values()
    cluster.state = replace(cluster.state, jobs={"s/1": replace(job, outcome={"state": "COMPLETED"})})
    assert client.post(f"{PATH}/repair").status_code == 202


def test_without_a_comparison_for_a_repair_nothing_is_repaired(serving, pair, cluster, until):
    client, _, runs = serving(REPAIRS)
    assert client.post(f"{PATH}/repair").json()["code"] == "repair.no_comparison"
    client.post(PATH)
    until(lambda: runs.get("w").is_over, 30)
    for query in ("", "?dry_run=true"):
        answer = client.post(f"{PATH}/repair{query}")
        assert (answer.status_code, answer.json()["code"]) == (409, "repair.no_comparison")
    assert cluster.state.jobs == {}


@pytest.mark.parametrize(
    ("change", "query", "status", "code"),
    [
        ({"target_state": "PAUSED"}, "", 409, "repair.unfit"),
        ({"config_version": 2}, "", 409, "repair.no_comparison"),
        ({"incarnation": "inc-2"}, "", 409, "repair.no_comparison"),
        ({}, "?comparison=another", 409, "repair.no_comparison"),
        ({}, "?batch=1", 400, "rest.bad_request"),
        ({}, "?batch=x", 400, "rest.bad_request"),
    ],
)
def test_what_is_not_the_source_that_was_compared_or_cannot_read_is_refused(
    for_repair, cluster, change, query, status, code
):
    client, _ = for_repair
    if change:
        source = replace(cluster.state.connectors["s"], **change)
        cluster.state = replace(cluster.state, connectors={**cluster.state.connectors, "s": source})
    answer = client.post(f"{PATH}/repair{query}")
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert cluster.state.jobs == {}


@pytest.mark.parametrize(
    ("grants", "trial", "repair"),
    [
        ((("operate", "w"),), 403, 403),
        ((("operate", "w"), ("read", "s")), 200, 403),
        ((("operate", ""),), 200, 202),
    ],
)
def test_a_repair_needs_operate_on_the_source_too_and_its_trial_read(
    for_repair, cluster, monkeypatch, grants, trial, repair
):
    client, _ = for_repair
    caller = Caller("team", tuple(Grant(*grant) for grant in grants), "token")
    monkeypatch.setattr("cdcworker.worker.rest.resources.targets.verify.caller_of", lambda scope: caller)
    assert client.post(f"{PATH}/repair?dry_run=true").status_code == trial
    assert client.post(f"{PATH}/repair").status_code == repair
    assert len(cluster.state.jobs) == (repair == 202)
