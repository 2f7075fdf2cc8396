"""What a task may use and how long it may stand still: the judgement, without any process."""

from __future__ import annotations

import dataclasses
import os

import pytest
from cdcworker.coordinator.model import AssignedTask
from cdcworker.worker.linux.procfs import ProcessStat, parse_stat, read_stat
from cdcworker.worker.linux.resource_usage import REFRESH_EVERY, UsageSampler
from cdcworker.worker.processes.child import TaskChild
from cdcworker.worker.processes.monitor import TaskMonitor
from cdcworker.worker.producers import client_watchdog as watchdog
from cdcworker.worker.protocol import control
from cdcworker.worker.protocol.heartbeat import CHECK_S_MAX, RUNNING, STARTING, HangDetector, TaskHeartbeat
from cdcworker.worker.protocol.task_limits import MB, TASK_HUNG, TASK_MEMORY, TaskLimits, heap_mb, limits_of
from cdcworker.worker.protocol.task_spec import ClusterTopics, TaskSpec

TASK = AssignedTask("shop", "i1", 0, 7)
SPEC = TaskSpec(
    kind="source",
    connector="shop",
    task=0,
    incarnation="i",
    task_epoch=7,
    attempt=0,
    worker_id="w",
    boot_id="b",
    paused=False,
    config={},
    kafka={},
    group_id="g",
    topics=ClusterTopics("c", "o", "s", "r"),
    offsets_partitions=1,
    session_timeout_s=10.0,
    state_dir="",
)


def spec(kind="source", **config) -> TaskSpec:
    return dataclasses.replace(SPEC, kind=kind, config={key.replace("_", "."): value for key, value in config.items()})


# --- limits ----------------------------------------------------------------------------------------------------------


def test_a_connector_that_says_nothing_gets_the_workers_limits():
    assert limits_of(spec(), 500) == TaskLimits(memory_mb=500)


def test_a_sink_may_use_its_heap_besides():
    assert limits_of(spec("sink"), 500).memory_mb == 1524
    assert limits_of(spec("sink", spark_driver_memory="512m"), 500).memory_mb == 1012
    assert limits_of(spec("sink", task_memory_limit_mb="700"), 500).memory_mb == 700
    assert limits_of(spec("sink"), 0).memory_mb == 0


def test_a_connectors_own_limits_count():
    limits = limits_of(spec(task_memory_limit_mb="0", task_hang_timeout_ms="5000", task_start_timeout_ms="4000"))
    assert limits == TaskLimits(memory_mb=0, hang_s=5.0, start_s=3.0)


def test_values_that_are_no_numbers_count_as_not_given():
    assert limits_of(spec(task_memory_limit_mb="${env:X}", task_hang_timeout_ms="-1")) == TaskLimits()


@pytest.mark.parametrize(
    ("text", "mb"), [("1g", 1024), ("512m", 512), ("2G", 2048), ("1048576k", 1024), ("what", 1024)]
)
def test_javas_sizes_are_understood(text, mb):
    assert heap_mb(text) == mb


# --- hang detection -------------------------------------------------------------------------------------------------------


def detector_of(progress: TaskHeartbeat, hang_s=10.0, start_s=100.0) -> HangDetector:
    detector = HangDetector(hang_s, start_s)
    detector.message_received(progress.message())
    return detector


def pass_s(detector: HangDetector, seconds: float) -> None:
    for _ in range(int(seconds)):
        detector.add_elapsed(1.0)


def test_a_task_that_counts_its_steps_never_hangs():
    progress = TaskHeartbeat()
    progress.enter(RUNNING)
    detector = detector_of(progress)
    for _ in range(10):
        pass_s(detector, 9)
        progress.beat()
        detector.message_received(progress.message())
    assert not detector.hangs


def test_messages_without_a_step_between_them_keep_nobody_alive():
    progress = TaskHeartbeat()
    progress.enter(RUNNING)
    detector = detector_of(progress)
    for _ in range(11):
        pass_s(detector, 1)
        detector.message_received(progress.message())
        detector.message_received({"type": "metrics", "records": 3})
    assert detector.hangs


def test_a_start_has_a_limit_of_its_own():
    progress = TaskHeartbeat()
    detector = detector_of(progress)
    pass_s(detector, 99)
    assert not detector.hangs
    pass_s(detector, 2)
    assert detector.hangs
    progress.enter(RUNNING)
    detector.message_received(progress.message())
    pass_s(detector, 11)
    assert detector.hangs


def test_a_step_may_be_given_more_time_which_ends_with_the_next_one():
    progress = TaskHeartbeat()
    progress.enter(RUNNING)
    progress.beat("commit", 30.0)
    detector = detector_of(progress)
    pass_s(detector, 39)
    assert not detector.hangs
    progress.beat()
    detector.message_received(progress.message())
    pass_s(detector, 11)
    assert detector.hangs


def test_a_task_that_says_nothing_at_all_has_the_time_of_a_start():
    detector = HangDetector(10.0, 20.0)
    pass_s(detector, 15)
    detector.message_received({"type": "status", "state": "RUNNING"})
    pass_s(detector, 15)
    assert not detector.hangs
    assert not detector.has_heartbeat
    pass_s(detector, 6)
    assert detector.hangs


def test_a_worker_that_was_paused_itself_takes_no_task_for_hung():
    progress = TaskHeartbeat()
    progress.enter(RUNNING)
    detector = detector_of(progress)
    detector.add_elapsed(3600.0)
    assert detector.stalled_s == CHECK_S_MAX
    assert not detector.hangs


def test_no_limit_is_no_limit():
    progress = TaskHeartbeat()
    progress.enter(RUNNING)
    detector = detector_of(progress, hang_s=0.0)
    pass_s(detector, 10_000)
    assert not detector.hangs


@pytest.mark.parametrize("message", [{"n": "x"}, {"n": None, "phase": 3}, {}, {"n": 1, "allow_s": "long", "doing": 5}])
def test_beats_that_make_no_sense_harm_nobody(message):
    detector = HangDetector(10.0, 20.0)
    detector.message_received({"type": "beat", **message})
    assert not detector.hangs


def test_a_guarded_call_says_what_it_is_and_how_long_it_may_take(monkeypatch):
    progress = TaskHeartbeat()
    monkeypatch.setattr(watchdog, "HEARTBEAT", progress)
    guard = watchdog.ClientWatchdog(lambda _doing: None)
    with guard.guard(30.0, "commit"):
        assert progress.message()["doing"] == "commit"
        assert progress.message()["allow_s"] == 30.0 + watchdog.GRACE_S
    assert progress.message()["allow_s"] == 0.0
    assert progress.message()["n"] == 2


def test_a_task_that_reports_that_it_runs_has_started_and_one_that_waits_has_made_a_step(monkeypatch):
    progress = TaskHeartbeat()
    monkeypatch.setattr(control, "HEARTBEAT", progress)
    assert progress.message()["phase"] == STARTING
    near, far = os.pipe()
    control.TaskReporter(far, lambda: None).status("RUNNING")
    os.close(near)
    os.close(far)
    assert progress.message()["phase"] == RUNNING
    before = progress.message()["n"]
    control.TaskControl(1.0).wait(0.0)
    assert progress.message()["n"] == before + 1


# --- usage -----------------------------------------------------------------------------------------------------------


class Machine:
    """The processes of a machine that does not exist."""

    def __init__(self) -> None:
        self.stats: dict[int, ProcessStat] = {}
        self.reads = 0

    def put(self, pid, parent=1, session=None, *, rss=10, cpu=0.0, start=None, state="S") -> None:
        stat = ProcessStat(pid, state, parent, pid, session or pid, cpu, start or pid, rss * MB)
        self.stats[pid] = stat

    def read(self, pid):
        self.reads += 1
        return self.stats.get(pid)

    def sampler(self) -> UsageSampler:
        return UsageSampler(self.read, lambda: list(self.stats))


def test_the_kernels_line_is_read_whatever_the_command_is_called():
    fields = "S 10 20 30 0 -1 0 0 0 0 0 150 50 0 0 20 0 3 0 777 1000 25"
    stat = parse_stat(4, f"4 (a ) b (c) {fields}".encode())
    assert (stat.state, stat.parent, stat.group, stat.session, stat.start) == ("S", 10, 20, 30, 777)
    assert stat.cpu_s == 200 / os.sysconf("SC_CLK_TCK")
    assert stat.rss_bytes == 25 * os.sysconf("SC_PAGE_SIZE")


def test_this_process_can_be_read():
    stat = read_stat(os.getpid())
    assert stat
    assert stat.parent == os.getppid()
    assert stat.rss_bytes > MB
    assert read_stat(2**30) is None


def test_the_children_of_a_task_count_with_it_and_others_do_not():
    machine = Machine()
    machine.put(100, rss=50)
    machine.put(101, parent=100, session=100, rss=1000)
    machine.put(102, parent=101, session=102, rss=5)
    machine.put(200, rss=7)
    machine.put(300, parent=1, rss=9999)
    usages = machine.sampler().sample([100, 200], 0.0)
    assert usages[100].rss_bytes == 1055 * MB
    assert usages[100].members == {100: 100, 101: 101, 102: 102}
    assert usages[200].rss_bytes == 7 * MB


def test_what_left_its_task_by_losing_its_parent_still_belongs_to_it():
    machine = Machine()
    machine.put(100)
    machine.put(101, parent=100, session=101, rss=40)
    machine.put(102, parent=100, session=100, rss=2)
    sampler = machine.sampler()
    sampler.sample([100], 0.0)
    machine.put(101, parent=1, session=101, rss=40)
    machine.put(102, parent=1, session=100, rss=2)
    assert sampler.sample([100], 1.0)[100].rss_bytes == 52 * MB
    machine.put(101, parent=1, session=101, rss=40, start=999)
    assert sampler.sample([100], 2.0)[100].rss_bytes == 12 * MB


def test_processor_time_is_that_between_two_looks_of_all_processes_of_a_task():
    machine = Machine()
    machine.put(100, cpu=50.0)
    sampler = machine.sampler()
    assert sampler.sample([100], 0.0)[100].cpu_cores == 0.0
    machine.put(100, cpu=50.5)
    machine.put(101, parent=100, cpu=1.0)
    assert sampler.sample([100], 1.0)[100].cpu_cores == pytest.approx(1.5)
    del machine.stats[101]
    assert sampler.sample([100], 2.0)[100].cpu_cores == 0.0


def test_processes_of_others_are_looked_at_once_in_a_while_only():
    machine = Machine()
    machine.put(100)
    for pid in range(1000, 1500):
        machine.put(pid)
    sampler = machine.sampler()
    sampler.sample([100], 0.0)
    machine.reads = 0
    for second in range(1, REFRESH_EVERY - 1):
        sampler.sample([100], float(second))
    assert machine.reads == REFRESH_EVERY - 2
    # An id that changed hands in between is found by the next full look.
    machine.put(1000, parent=100, rss=30, start=77)
    assert any(sampler.sample([100], 30.0 + second)[100].rss_bytes == 40 * MB for second in range(2))


# --- the watch -------------------------------------------------------------------------------------------------------


class Watched:
    def __init__(self, limits: TaskLimits) -> None:
        self.machine = Machine()
        self.ended: list = []
        self.reported: list = []
        self.child = TaskChild(TASK, "f" * 16, limits)
        self.child.pid = 100
        self.machine.put(100)
        self.watch = TaskMonitor(
            lambda child, error, show: self.ended.append((error, show)),
            lambda _child, numbers: self.reported.append(numbers),
            self.machine.sampler(),
        )
        self.now = 50.0
        self.watch.tick([self.child], self.now)

    def pass_s(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now += 1.0
            self.watch.tick([self.child], self.now)


def test_a_task_is_measured_about_once_a_second():
    watched = Watched(TaskLimits())
    watched.pass_s(2)
    watched.watch.tick([watched.child], watched.now + 0.5)
    assert watched.reported == [{"cpu_cores": 0.0, "rss_bytes": 10 * MB}] * 2
    assert not watched.ended


def test_a_task_with_its_children_over_its_limit_is_ended_with_limit_and_peak():
    watched = Watched(TaskLimits(memory_mb=100))
    watched.machine.put(101, parent=100, rss=91)
    watched.pass_s(1)
    ((error, show),) = watched.ended
    assert (error.code, error.retriable, show) == (TASK_MEMORY, True, False)
    assert error.where == {"limit_mb": 100, "peak_mb": 101}


def test_a_task_at_its_limit_goes_on():
    watched = Watched(TaskLimits(memory_mb=10))
    watched.pass_s(3)
    assert not watched.ended


def test_a_task_without_a_step_is_ended_after_it_has_shown_where_it_stands():
    watched = Watched(TaskLimits(hang_s=5.0))
    watched.child.hang_detector.message_received({"type": "beat", "n": 1, "phase": RUNNING, "doing": "the next poll"})
    watched.pass_s(5)
    assert not watched.ended
    watched.pass_s(1)
    ((error, show),) = watched.ended
    assert (error.code, error.retriable, show) == (TASK_HUNG, True, True)
    assert error.where == {"doing": "the next poll", "still_s": 6, "limit_s": 5}


def test_a_stopped_process_is_not_asked_where_it_stands():
    watched = Watched(TaskLimits(hang_s=2.0))
    watched.child.hang_detector.message_received({"type": "beat", "n": 1, "phase": RUNNING})
    watched.machine.put(100, state="T")
    watched.pass_s(3)
    ((error, show),) = watched.ended
    assert "stopped" in error.message
    assert not show


def test_a_task_is_ended_once_and_one_that_stops_has_another_limit():
    watched = Watched(TaskLimits(hang_s=2.0))
    watched.child.hang_detector.message_received({"type": "beat", "n": 1, "phase": RUNNING})
    watched.child.stopping = True
    watched.pass_s(10)
    assert not watched.ended
    watched.child.stopping = False
    watched.child.error = {"code": "worker.task_memory"}
    watched.pass_s(10)
    assert not watched.ended


def test_a_task_that_stands_still_right_after_its_start_hangs_although_no_further_beat_came():
    detector = detector_of(TaskHeartbeat())
    detector.message_received({"type": "status", "state": "RUNNING"})
    pass_s(detector, 11)
    assert detector.hangs
