import queue
import sys
import threading

import pytest
from cdcworker.coordinator.model import ClusterState, Connector, TaskSet
from cdcworker.schemas.errors import INTERNAL, CdcError
from cdcworker.schemas.patterns import INVALID
from cdcworker.schemas.untrusted import linear_match
from cdcworker.worker.herder.planner import PLAN_TIMEOUT, PLANS_AT_ONCE_MAX, PLANS_BUSY, TaskPlanner, matching_topics


def connector(name="c", **config) -> Connector:
    return Connector(name, "i1", 3, config, "RUNNING", "sink")


class Bench:
    """A planner whose answers come into a queue and whose topics can be changed."""

    def __init__(self, plan, **times) -> None:
        self.answers: queue.Queue = queue.Queue()
        self.topics = frozenset({"shop.public.a", "other"})
        self.planner = TaskPlanner(plan, lambda: self.topics, self.answers.put, **times)

    def answer(self):
        return self.answers.get(timeout=10)


def test_a_plan_is_answered_with_the_shares():
    bench = Bench(lambda found, topics: [{"n": found.config["a"]}, {"n": str(len(topics))}])
    bench.planner.request(connector(a="1"), 3)
    answer = bench.answer()
    assert (answer.connector, answer.incarnation, answer.config_version) == ("c", "i1", 3)
    assert answer.tasks == ({"n": "1"}, {"n": "0"})
    assert answer.error is None


def test_topics_are_listed_only_for_a_pattern_and_given_if_they_match_as_a_whole():
    bench = Bench(lambda _connector, topics: [{"topics": ",".join(sorted(topics))}])
    bench.planner.request(connector(**{"topics.regex": r"shop\..*"}), 3)
    assert bench.answer().tasks == ({"topics": "shop.public.a"},)


@pytest.mark.parametrize(("pattern", "found"), [("oth", set()), ("oth.*", {"other"})])
def test_a_pattern_matches_whole_names(pattern, found):
    assert matching_topics(connector(**{"topics.regex": pattern}), frozenset({"other", "x"})) == found


@pytest.mark.parametrize("pattern", ["(", r"(o)\1"])
def test_what_is_no_pattern_fails_its_connector(pattern):
    bench = Bench(lambda _connector, _topics: [{}])
    bench.planner.request(connector(**{"topics.regex": pattern}), 3)
    error = bench.answer().error
    assert (error["code"], error["where"]) == (INVALID, {"connector": "c", "key": "topics.regex"})


def test_an_error_of_ours_is_the_answer():
    def refuse(_connector, _topics):
        raise CdcError(PLAN_TIMEOUT, "no")

    bench = Bench(refuse)
    bench.planner.request(connector(), 3)
    assert bench.answer().error["code"] == PLAN_TIMEOUT


def test_any_other_error_is_internal_and_its_text_is_not_told():
    def crash(_connector, _topics):
        raise ValueError("row value")

    bench = Bench(crash)
    bench.planner.request(connector(), 3)
    error = bench.answer().error
    assert error["code"] == INTERNAL
    assert "row value" not in str(error)


def test_a_plan_that_wants_to_end_the_process_is_an_error_of_the_plan():
    bench = Bench(lambda found, topics: sys.exit(3))
    bench.planner.request(connector(), 1)
    assert bench.answer().error["code"] == INTERNAL


def test_a_plan_that_hangs_is_given_up_and_its_late_answer_is_not_told():
    release = threading.Event()
    bench = Bench(lambda *_: [{"late": str(release.wait(20))}], timeout_s=0.0)
    bench.planner.request(connector(), 3)
    bench.planner.tick(ClusterState(), leading=False)
    assert bench.answer().error["code"] == PLAN_TIMEOUT
    release.set()
    for thread in threading.enumerate():
        if thread.name == "plan-c":
            thread.join(10)
    assert bench.answers.empty()


def test_hanging_plans_do_not_take_every_thread_there_is():
    release = threading.Event()
    bench = Bench(lambda *_: [{"late": str(release.wait(20))}], timeout_s=0.0)
    for n in range(PLANS_AT_ONCE_MAX):
        bench.planner.request(connector(f"c{n}"), 3)
    bench.planner.tick(ClusterState(), leading=False)
    for _ in range(PLANS_AT_ONCE_MAX):
        assert bench.answer().error["code"] == PLAN_TIMEOUT
    bench.planner.request(connector("one too many"), 3)
    assert bench.answer().error["code"] == PLANS_BUSY
    release.set()


def state_of(found: Connector) -> ClusterState:
    return ClusterState(connectors={"c": found}, task_sets={"c": TaskSet("i1", 3, ({},))})


def test_the_leader_plans_again_when_other_topics_match():
    bench = Bench(lambda _connector, topics: [{"topics": ",".join(sorted(topics))}], check_patterns_every_s=0.0)
    found = connector(**{"topics.regex": r"shop\..*"})
    bench.planner.request(found, 3)
    bench.answer()
    bench.planner.tick(state_of(found), leading=True)
    join("plan-topics")
    assert bench.answers.empty()
    bench.topics |= {"shop.public.b"}
    bench.planner.tick(state_of(found), leading=True)
    assert bench.answer().tasks == ({"topics": "shop.public.a,shop.public.b"},)


def test_a_pattern_that_cannot_be_matched_any_more_is_left_alone_and_the_others_are_watched(monkeypatch):
    bench = Bench(lambda _connector, topics: [{"topics": ",".join(sorted(topics))}], check_patterns_every_s=0.0)
    found = {name: connector(name, **{"topics.regex": pattern}) for name, pattern in (("a", "(?!x).*"), ("b", "o.*"))}
    for one in found.values():
        bench.planner.request(one, 3)
        bench.answer()
    state = ClusterState(connectors=found, task_sets={name: TaskSet("i1", 3, ({},)) for name in found})
    bench.planner.tick(state, leading=True)
    join("plan-topics")
    monkeypatch.setattr(linear_match, "STEPS_MAX", 0)
    for topic in ("o1", "o2"):
        bench.topics |= {topic}
        bench.planner.tick(state, leading=True)
        answer = bench.answer()
        assert (answer.connector, answer.error) == ("b", None)
        assert topic in answer.tasks[0]["topics"]
        join("plan-topics")
        join("plan-b")
    assert bench.answers.empty()


def test_a_connector_that_hangs_takes_one_thread_however_often_it_changes():
    release = threading.Event()
    bench = Bench(lambda found, _topics: [{"late": str(found.name == "c" and release.wait(20))}], timeout_s=0.0)
    bench.planner.request(connector(), 1)
    bench.planner.tick(ClusterState(), leading=False)
    assert bench.answer().error["code"] == PLAN_TIMEOUT
    for version in range(2, 2 * PLANS_AT_ONCE_MAX):
        bench.planner.request(connector(), version)
        assert bench.answer().error["code"] == PLANS_BUSY
    bench.planner.request(connector("other"), 1)
    assert bench.answer().error is None
    release.set()
    join("plan-c")
    bench.planner.request(connector(), 99)
    assert bench.answer().tasks == ({"late": "True"},)


def test_a_follower_watches_nothing():
    bench = Bench(lambda *_: [{}], check_patterns_every_s=0.0)
    bench.planner.tick(state_of(connector(**{"topics.regex": ".*"})), leading=False)
    join("plan-topics")
    assert bench.answers.empty()


def join(name: str) -> None:
    for thread in threading.enumerate():
        if thread.name == name:
            thread.join(10)


def test_plans_that_find_no_free_thread_wait_for_one():
    gate = threading.Event()

    def split(_connector, _topics):
        assert gate.wait(10)
        return [{}]

    bench = Bench(split)
    for n in range(5 * PLANS_AT_ONCE_MAX):
        bench.planner.request(connector(f"c{n}"), 3)
        bench.planner.request(connector(f"c{n}"), 3)
    gate.set()
    answers = [bench.answer() for _ in range(5 * PLANS_AT_ONCE_MAX)]
    assert len({answer.connector for answer in answers}) == 5 * PLANS_AT_ONCE_MAX
    assert not [answer for answer in answers if answer.error]


def test_plans_that_wait_behind_hanging_ones_are_told_so():
    release = threading.Event()
    bench = Bench(lambda _connector, _topics: [{}] if release.wait(10) else [], timeout_s=0.0)
    try:
        for n in range(PLANS_AT_ONCE_MAX + 1):
            bench.planner.request(connector(f"c{n}"), 3)
        bench.planner.tick(ClusterState(), leading=False)
        codes = {bench.answer().error["code"] for _ in range(PLANS_AT_ONCE_MAX + 1)}
        assert codes == {PLAN_TIMEOUT, PLANS_BUSY}
    finally:
        release.set()


@pytest.mark.parametrize("share", [{"n": 1}, {"n": None}, {"n": b"x"}, {2: "n"}, {"n": "caf\udce9"}])
def test_a_share_that_cannot_be_written_down_is_an_error_of_the_plan(share):
    bench = Bench(lambda _connector, _topics: [{"n": "1"}, share])
    bench.planner.request(connector(), 3)
    answer = bench.answer()
    assert (answer.tasks, answer.error["code"]) == ((), INTERNAL)


def test_a_plans_error_is_text_that_every_log_can_carry():
    def plan(_connector, _topics):
        raise CdcError(PLANS_BUSY, "no such file: caf\udce9" + "x" * 1_000_000)

    bench = Bench(plan)
    bench.planner.request(connector(), 3)
    error = bench.answer().error
    assert error["code"] == PLANS_BUSY
    assert error["message"].startswith("no such file: caf?x")
    assert len(error["message"]) < 10_000
