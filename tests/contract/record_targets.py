"""What every sink of records has to do, whatever dies: a receiver that takes each id once holds what the source holds.

The module of a target runs these tests over its fixture `receiver`, which has a `config` for the task, a `ledger`, and may be stopped
and started.
"""

from __future__ import annotations

import signal

from tests.record_sinks import TaskProcess, Topics, Workload, running, seed, wait

QUICK = {
    "batch.max.size": "40",
    "offset.commit.interval.ms": "100",
    "retry.backoff.ms": "20",
    "errors.retry.delay.max.ms": "200",
}


def holds(receiver, workload: Workload, *tasks: TaskProcess) -> None:
    """Waits until the receiver has the rows of the workload, each event in the order of its partition."""
    try:
        wait(lambda: receiver.ledger.held() == workload.rows, "all rows")
    except AssertionError:
        raise AssertionError("\n".join(["not all rows", *(task.told() for task in tasks)])) from None
    assert receiver.ledger.disorder == []


def test_the_ledger_of_a_random_workload_is_what_the_receiver_holds_after_kills(kafka, receiver, tmp_path):
    topics = Topics(kafka)
    workload = Workload(topics, seed())
    workload.run(300)
    tasks = [TaskProcess(topics, receiver.config | QUICK, (1, 0), tmp_path)]
    with running():
        try:
            for epoch in range(2, 4):
                before = len(receiver.ledger.ids)
                wait(lambda before=before: len(receiver.ledger.ids) > before + 60, "progress")
                tasks[-1].signal(signal.SIGKILL)
                if epoch == 3:
                    workload.evolve()
                workload.run(200)
                tasks.append(TaskProcess(topics, receiver.config | QUICK, (epoch, 0), tmp_path))
            holds(receiver, workload, tasks[-1])
            tasks[-1].stop()
            ends = {number: at for number, (at, _) in topics.committed(topics.name).items()}
            again = TaskProcess(topics, receiver.config | QUICK, (9, 0), tmp_path)
            tasks.append(again)
            wait(lambda: again.numbers.get("lag_records") == 0, "that nothing waits")
            assert again.numbers["changes"] == 0, "what is committed does not come again"
            assert {number: at for number, (at, _) in topics.committed(topics.name).items()} == ends
            again.stop()
        finally:
            for task in tasks:
                task.kill()


def test_a_former_owner_that_wakes_up_commits_nothing_and_writes_no_further_batch(kafka, receiver, tmp_path):
    topics = Topics(kafka)
    workload = Workload(topics, seed())
    workload.run(200, truncates=False)
    old = TaskProcess(topics, receiver.config | QUICK, (1, 0), tmp_path)
    made = [old]
    try:
        wait(lambda: len(receiver.ledger.ids) > 40, "progress")
        old.signal(signal.SIGSTOP)
        new = TaskProcess(topics, receiver.config | QUICK, (2, 0), tmp_path)
        made.append(new)
        workload.run(200, truncates=False)
        holds(receiver, workload, new)
        wait(lambda: all(note.startswith("2.0 ") for _, note in topics.committed(topics.name).values()), "its notes")
        wait(lambda: new.numbers.get("lag_records") == 0, "that nothing waits")
        old.signal(signal.SIGCONT)
        assert old.ended() == 3, old.told()
        assert old.error is not None
        assert old.error["code"] == "sink.fenced"
        workload.run(50, truncates=False)
        holds(receiver, workload, new)
        new.stop()
    finally:
        for task in made:
            task.kill()


def test_a_receiver_that_is_away_is_waited_for(kafka, receiver, tmp_path):
    topics = Topics(kafka)
    workload = Workload(topics, seed())
    workload.run(200)
    task = TaskProcess(topics, receiver.config | QUICK, (1, 0), tmp_path)
    try:
        wait(lambda: len(receiver.ledger.ids) > 40, "progress")
        receiver.stop()
        workload.run(200)
        wait(lambda: task.numbers.get("retrying"), "that the task tries again")
        receiver.start()
        holds(receiver, workload, task)
        wait(lambda: task.numbers.get("retrying", "") is None, "that it tries no more")
        task.stop()
    finally:
        task.kill()
