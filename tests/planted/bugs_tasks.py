"""Planted bugs in who is there, who runs what, and what a task's process does."""

from __future__ import annotations

from .tree import Bug

WORKER = "tests/unit/worker"
SOURCE = "tests/unit/worker/source"

BUGS = (
    # --- who is there -------------------------------------------------------------------------------------------------
    Bug(
        "takeover-resets-lease-ages",
        "coordinator/leader.py",
        "    _refuse_lost(turn, epoch)\n    # Fences",
        "    _refuse_lost(turn, epoch)\n    turn.status = replace(turn.status, leases={\n"
        "        w: replace(lease, seen_s=turn.status.clock_s) for w, lease in turn.status.leases.items()})\n    # Fences",
        "the fail-over of the leader and of the tasks that died with it would add up",
    ),
    Bug(
        "leases-by-wall-clock",
        "coordinator/membership.py",
        "judge = Judge(me.worker_id, me.boot_id, turn.mono, 3 * settings.lease_interval_s)",
        "judge = Judge(me.worker_id, me.boot_id, turn.now.wall_ms / 1000, 3600.0)",
        "a clock that is set would kill every worker, or none",
    ),
    Bug(
        "own-silence-ages-the-others",
        "coordinator/status.py",
        "            work.clock_s += min(max(0.0, judge.mono - work.own_seen_mono), judge.step_max_s)",
        "            work.clock_s += max(0.0, judge.mono - work.own_seen_mono)",
        "one unreachable partition would look like the death of all others",
    ),
    Bug(
        "lease-of-a-replaced-process-counts",
        "coordinator/status.py",
        "    if present is not None and present.boot_id != boot_id:\n        return",
        "    if False:\n        return",
        "a late word of the process before it would make a worker that has just come back look dead",
    ),
    Bug(
        "statuses-by-arrival",
        "coordinator/status.py",
        "    if known is None or status_order(status) >= status_order(known):",
        "    if True:",
        "the late report of a zombie would cover its successor's",
        modelled=True,
    ),
    Bug(
        "statuses-without-the-epoch",
        "coordinator/status.py",
        "    return (status.task_epoch, status.seq)",
        "    return (status.seq, status.task_epoch)",
        "a zombie that reports often would win against a new owner",
        modelled=True,
    ),
    Bug(
        "tasks-never-go-silent",
        "coordinator/membership.py",
        "    if age >= turn.settings.mute_after_s and not turn.work.muted:",
        "    if False:",
        "a worker without a lease would produce while the next owner starts",
    ),
    Bug(
        "tasks-are-never-killed",
        "coordinator/membership.py",
        "    if age >= turn.settings.kill_after_s:",
        "    if False:",
        "a worker without a lease would keep its processes for ever",
    ),
    Bug(
        "starts-without-a-lease",
        "coordinator/supervisor.py",
        "    return acked is not None and turn.mono - acked < turn.settings.mute_after_s",
        "    return True",
        "a worker that is taken for dead would start tasks, and fence those who got them",
    ),
    Bug(
        "lease-counts-from-its-answer",
        "worker/herder.py",
        "        self._lease_until = event.sent_mono + 0.6",
        "        self._lease_until = time.monotonic() + 0.6",
        "tasks would produce for as long as an answer was under way after the others gave them up",
        WORKER,
    ),
    Bug(
        "lease-never-lapses-in-the-task",
        "worker/control.py",
        "        return self._clock() < self._valid_until",
        "        return True",
        "a task of a worker that hangs would produce for ever",
        WORKER,
    ),
    Bug(
        "lease-not-looked-at-before-the-commit",
        "worker/source_session.py",
        '        self._require_lease()\n        hit("source.before_commit")',
        '        hit("source.before_commit")',
        "a task that slept between two steps would commit for a worker that is dead to the others",
        SOURCE,
    ),
    Bug(
        "verdict-outlives-a-sign-of-life",
        "coordinator/probing.py",
        "    if probe is None or lease is None or lease != probe.lease or lease.boot_id != event.boot_id:",
        "    if probe is None or lease is None:",
        "a worker that was silent for a moment would be buried after it was heard again",
    ),
    # --- who runs what ------------------------------------------------------------------------------------------------
    Bug(
        "assigned-before-the-stop-was-reported",
        "coordinator/holdings.py",
        "        self.causes.setdefault(entry.id, why)\n        self.blocked.add(entry.id)",
        "        self.causes.setdefault(entry.id, why)",
        "two workers would run the task at once",
    ),
    Bug(
        "any-report-releases",
        "coordinator/holdings.py",
        '    return status.task_epoch > epoch or status.state == "STOPPED"',
        "    return True",
        "a task that says that it runs would be given to another worker",
        modelled=True,
    ),
    Bug(
        "report-of-an-older-start-releases",
        "coordinator/holdings.py",
        "    if status is None or status.task_epoch < epoch:",
        "    if status is None:",
        "the stop of an earlier start would release the present one",
        modelled=True,
    ),
    Bug(
        "revoke-forgotten",
        "coordinator/placement.py",
        "            revoke = tuple(sorted(have.revoked.get(worker_id, ())))",
        "            revoke = ()",
        "a task that changes hands would not be stopped and waited for",
    ),
    Bug(
        "stop-reported-while-it-runs",
        "coordinator/supervisor.py",
        "        is_over = local_task is None or local_task.task.task_epoch > entry.task_epoch",
        "        is_over = True",
        "the task would be given away before its process ended",
    ),
    Bug(
        "stopped-task-starts-again",
        "coordinator/supervisor.py",
        "    if entry.id not in turn.work.local and not _was_stopped(turn, entry):",
        "    if entry.id not in turn.work.local:",
        "a task that was given away could come up here once more",
    ),
    Bug(
        "assignment-of-another-boot",
        "coordinator/supervisor.py",
        "    return assignment if assignment is not None and assignment.boot_id == turn.me.boot_id else None",
        "    return assignment",
        "a worker that came back would start what its predecessor had, not fenced and not asked",
    ),
    Bug(
        "owner-is-fenced-by-the-leader",
        "coordinator/placement.py",
        "owned = {entry.id for tasks in self.given.values() for entry in tasks} | have.blocked_by_living()",
        "owned = have.blocked_by_living()",
        "a task that has just got its new owner would be fenced, and start twice",
    ),
    Bug(
        "lost-task-left-open",
        "coordinator/placement.py",
        "        if fresh:\n            fences.to_do(batch, fresh)",
        "        pass",
        "what a dead task left open would hold back every reader until it times out",
    ),
    Bug(
        "paused-task-moves-without-a-fence",
        "coordinator/placement.py",
        "            have.blocked.add(task_id)\n",
        "            pass\n",
        "a paused source opens nothing, so its zombie would not be fenced by its new owner",
    ),
    Bug(
        "deadline-begins-anew",
        "coordinator/lost.py",
        "        seen[what] = known if known and is_known else Seen(deadline.boot_id, deadline.cause, turn.mono)",
        "        seen[what] = Seen(deadline.boot_id, deadline.cause, turn.mono)",
        "lost work would wait again with each leader, and with each change of what waits",
    ),
    Bug(
        "deadline-ages-from-the-claim",
        "coordinator/leader.py",
        '    turn.lead = replace(turn.lead, role="claimed", epoch=epoch,',
        '    turn.lead = replace(turn.lead, seen={}, role="claimed", epoch=epoch,',
        "lost work would wait again with each new leader",
    ),
    Bug(
        "journal-misses-a-move",
        "coordinator/placement.py",
        "        self._move(task_id, target, why, source)\n",
        "        pass\n",
        "nobody could say why a task runs where it runs",
    ),
    Bug(
        "fenced-task-is-not-started-again",
        "coordinator/supervisor.py",
        '    if error.get("kind") == "fenced":\n',
        "    if False:\n",
        "a rightful owner that a zombie fenced would stay down",
    ),
    # --- a task's process -----------------------------------------------------------------------------------------------
    Bug(
        "fence-dropped",
        "worker/kafka_tx.py",
        "                    self._producer.init_transactions(step_s)",
        "                    pass",
        "a predecessor would go on to commit, and what it left open would stay",
        WORKER,
    ),
    Bug(
        "assignment-not-looked-up",
        "worker/source_runner.py",
        "            if not ports.assigned():",
        "            if False:",
        "a process that slept before its start would run a task that is another's by now",
        SOURCE,
    ),
    Bug(
        "assignment-looked-up-once",
        "worker/source_runner.py",
        "            if not ports.assigned():",
        "            if not self._sessions and not ports.assigned():",
        "who was fenced would take the id back without asking whether the task is still its own",
        SOURCE,
    ),
    Bug(
        "assignment-of-another-epoch",
        "worker/source_kafka.py",
        "    if assignment is None or assignment.boot_id != spec.boot_id or entry not in assignment.tasks:",
        "    if assignment is None or assignment.boot_id != spec.boot_id:",
        "a process would go on although its task was revoked",
        SOURCE,
        modelled=True,
    ),
    Bug(
        "position-read-before-the-fence",
        "worker/source_runner.py",
        """            pen = ports.pen()
            self._registrar = registrar = ports.registrar()
            laps.note("fence_ms")
            if not ports.assigned():
                raise NotOwner
            laps.note("assigned_ms")
            stored = ports.position()
""",
        """            stored = ports.position()
            pen = ports.pen()
            self._registrar = registrar = ports.registrar()
            if not ports.assigned():
                raise NotOwner
""",
        "the position would be one that the predecessor has moved since",
        SOURCE,
    ),
    Bug(
        "assignment-read-before-the-fence",
        "worker/source_runner.py",
        """            pen = ports.pen()
            self._registrar = registrar = ports.registrar()
            laps.note("fence_ms")
            if not ports.assigned():
                raise NotOwner
""",
        """            if not ports.assigned():
                raise NotOwner
            pen = ports.pen()
            self._registrar = registrar = ports.registrar()
""",
        "a process that sleeps between the two would take over a task that is another's by now",
        SOURCE,
    ),
    Bug(
        "position-of-a-newer-owner-is-taken",
        "worker/source_runner.py",
        "        if stored.task_epoch > place.task_epoch:\n            raise NotOwner",
        "        if False:\n            raise NotOwner",
        "whoever finds the position of a newer owner is the older one",
        SOURCE,
    ),
    Bug(
        "position-read-to-the-stable-offset",
        "worker/source_opening.py",
        "        end = self._offset(topic, number, OffsetSpec.latest())\n",
        "        end = self._consumer.get_watermark_offsets(TopicPartition(topic, number), cached=False)[1]\n",
        "a position behind another task's open transaction would be missed, and its changes written twice",
        "tests/integration/test_fencing_premises.py",
        deep=True,
    ),
    Bug(
        "left-open-is-not-looked-for",
        "worker/source_ports.py",
        "        self._settler.settle_data(reader.admin, self._written(), producers, reader.stored_at_ms)\n",
        "",
        "what was aborted without markers would be committed with the next transaction",
        "tests/integration/test_left_open.py",
        deep=True,
    ),
    Bug(
        "left-open-is-always-aborted",
        "worker/source_left_open.py",
        "    return bool(written_ms <= stored_at_ms)\n",
        "    return False\n",
        "what was committed without markers would be lost",
        "tests/integration/test_left_open.py",
        deep=True,
    ),
    Bug(
        "producer-reused-after-a-time-out",
        "worker/kafka_tx.py",
        "        self._spent = True\n        error = e.kafka_error(exc)",
        "        error = e.kafka_error(exc)",
        "a late commit of the old transaction would end the next one half written",
        WORKER,
    ),
    Bug(
        "session-goes-on-after-a-failed-commit",
        "worker/source_session.py",
        '        except CdcError as error:\n            raise self._named(error, position_bytes) from error\n        hit("source.after_commit")',
        '        except CdcError as error:\n            log.info("%s", error)\n        hit("source.after_commit")',
        "a commit that is not known to have happened would be acknowledged",
        SOURCE,
    ),
    Bug(
        "confirmed-before-the-commit",
        "worker/source_session.py",
        "        try:\n            pen.commit()\n",
        "        if position is not None:\n            self._tools.task.ack(position)\n        try:\n            pen.commit()\n",
        "the source would forget changes that Kafka does not have",
        SOURCE,
    ),
    Bug(
        "position-in-another-transaction",
        "worker/source_session.py",
        "        position_bytes = self._produce_position(position) if position is not None else 0\n"
        "        self._require_lease()",
        "        if position is not None:\n            pen.commit()\n            pen.begin()\n"
        "        position_bytes = self._produce_position(position) if position is not None else 0\n"
        "        self._require_lease()",
        "a crash between the two would write the changes twice",
        SOURCE,
    ),
    Bug(
        "committed-inside-a-source-transaction",
        "worker/source_session.py",
        '        if not self._at_boundary:\n            return ""\n        now',
        "        now",
        "half of a source transaction would become visible",
        SOURCE,
    ),
    Bug(
        "fenced-taken-for-passing",
        "worker/policy.py",
        '        return Action("yield", backoff(attempt))',
        '        return Action("retry", backoff(attempt))',
        "two owners that fight would go on fencing each other without a limit of their own",
        WORKER,
    ),
    # --- sinks ----------------------------------------------------------------------------------------------------------
    Bug(
        "sink-ignores-the-fence",
        "connectors/spark/ledger.py",
        "        if found is None or tuple(found[:2]) != self.epoch:",
        "        if found is None:",
        "a sink that slept would apply its old batch after its successor's",
        "tests/integration/test_spark_writer.py",
        deep=True,
    ),
    Bug(
        "sink-ignores-the-ledgers-epoch",
        "connectors/spark/ledger.py",
        "            if (task_epoch, attempt) > self.epoch:",
        "            if False:",
        "a task of an older split would apply topics that another task has by now",
        "tests/integration/test_spark_writer.py",
        deep=True,
    ),
    Bug(
        "sink-lowers-the-fence",
        "connectors/spark/ledger.py",
        "               where (f.task_epoch, f.attempt) <= (excluded.task_epoch, excluded.attempt)\n",
        "",
        "an older owner that comes late would fence its successor",
        "tests/integration/test_spark_writer.py",
        deep=True,
    ),
)
