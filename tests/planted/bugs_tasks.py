"""Planted bugs in who is there, who runs what, and what a task's process does."""

from __future__ import annotations

from .tree import Bug

WORKER = "tests/unit/worker"
SOURCE = "tests/unit/worker/source"

BUGS = (
    # --- who is there -------------------------------------------------------------------------------------------------
    Bug(
        "takeover-resets-lease-ages",
        "coordinator/core/leader.py",
        "    _refuse_superseded(transition, epoch)\n    # Fences",
        "    _refuse_superseded(transition, epoch)\n    transition.status = replace(transition.status, leases={\n"
        "        w: replace(lease, seen_s=transition.status.lease_clock_s) for w, lease in transition.status.leases.items()})\n    # Fences",
        "the fail-over of the leader and of the tasks that died with it would add up",
    ),
    Bug(
        "leases-by-wall-clock",
        "coordinator/core/membership.py",
        "reader = LeaseReader(me.worker_id, me.boot_id, transition.mono, 3 * settings.lease_interval_s)",
        "reader = LeaseReader(me.worker_id, me.boot_id, transition.now.wall_ms / 1000, 3600.0)",
        "a clock that is set would kill every worker, or none",
    ),
    Bug(
        "own-silence-ages-the-others",
        "coordinator/log/status_fold.py",
        "            draft.lease_clock_s += min(max(0.0, reader.mono - draft.own_seen_mono), reader.advance_max_s)",
        "            draft.lease_clock_s += max(0.0, reader.mono - draft.own_seen_mono)",
        "one unreachable partition would look like the death of all others",
    ),
    Bug(
        "lease-of-a-replaced-process-counts",
        "coordinator/log/status_fold.py",
        "    if present is not None and present.boot_id != boot_id:\n        return",
        "    if False:\n        return",
        "a late word of the process before it would make a worker that has just come back look dead",
    ),
    Bug(
        "statuses-by-arrival",
        "coordinator/log/status_fold.py",
        "    if known is None or status_order(status) >= status_order(known):",
        "    if True:",
        "the late report of a zombie would cover its successor's",
        modelled=True,
    ),
    Bug(
        "statuses-without-the-epoch",
        "coordinator/log/status_fold.py",
        "    return (status.task_epoch, status.seq)",
        "    return (status.seq, status.task_epoch)",
        "a zombie that reports often would win against a new owner",
        modelled=True,
    ),
    Bug(
        "tasks-never-go-silent",
        "coordinator/core/membership.py",
        "    if age >= transition.settings.stop_producing_after_s and not transition.work.producing_stopped:",
        "    if False:",
        "a worker without a lease would produce while the next owner starts",
    ),
    Bug(
        "tasks-are-never-killed",
        "coordinator/core/membership.py",
        "    if age >= transition.settings.kill_after_s:",
        "    if False:",
        "a worker without a lease would keep its processes for ever",
    ),
    Bug(
        "starts-without-a-lease",
        "coordinator/core/supervisor.py",
        "    return acked is not None and transition.mono - acked < transition.settings.stop_producing_after_s",
        "    return True",
        "a worker that is taken for dead would start tasks, and fence those who got them",
    ),
    Bug(
        "lease-counts-from-its-answer",
        "worker/herder/herder.py",
        "        self._lease_until = event.sent_mono + 0.6",
        "        self._lease_until = time.monotonic() + 0.6",
        "tasks would produce for as long as an answer was under way after the others gave them up",
        WORKER,
    ),
    Bug(
        "lease-never-lapses-in-the-task",
        "worker/protocol/control.py",
        "        return self._clock() < self._valid_until",
        "        return True",
        "a task of a worker that hangs would produce for ever",
        WORKER,
    ),
    Bug(
        "lease-not-looked-at-before-the-commit",
        "worker/source/session.py",
        "        require_lease(self._parts.control)\n        if failpoints.active:\n",
        "        if failpoints.active:\n",
        "a task that slept between two steps would commit for a worker that is dead to the others",
        SOURCE,
    ),
    Bug(
        "verdict-outlives-a-sign-of-life",
        "coordinator/core/membership.py",
        "    if probe is None or lease is None or lease != probe.lease or lease.boot_id != event.boot_id:",
        "    if probe is None or lease is None:",
        "a worker that was silent for a moment would be buried after it was heard again",
    ),
    # --- who runs what ------------------------------------------------------------------------------------------------
    Bug(
        "assigned-before-the-stop-was-reported",
        "coordinator/core/ownership.py",
        "        self.causes.setdefault(entry.id, why)\n        self.blocked.add(entry.id)",
        "        self.causes.setdefault(entry.id, why)",
        "two workers would run the task at once",
    ),
    Bug(
        "any-report-releases",
        "coordinator/core/ownership.py",
        '    return status.task_epoch > epoch or status.state == "STOPPED"',
        "    return True",
        "a task that says that it runs would be given to another worker",
        modelled=True,
    ),
    Bug(
        "report-of-an-older-start-releases",
        "coordinator/core/ownership.py",
        "    if status is None or status.task_epoch < epoch:",
        "    if status is None:",
        "the stop of an earlier start would release the present one",
        modelled=True,
    ),
    Bug(
        "revoke-forgotten",
        "coordinator/core/placement.py",
        "            revoke = tuple(sorted(ownership.revoked.get(worker_id, ())))",
        "            revoke = ()",
        "a task that changes hands would not be stopped and waited for",
    ),
    Bug(
        "stop-reported-while-it-runs",
        "coordinator/core/supervisor.py",
        "        is_over = local_task is None or local_task.task.task_epoch > entry.task_epoch",
        "        is_over = True",
        "the task would be given away before its process ended",
    ),
    Bug(
        "stopped-task-starts-again",
        "coordinator/core/supervisor.py",
        "    if entry.id not in transition.work.local and not _was_reported_stopped(transition, entry):",
        "    if entry.id not in transition.work.local:",
        "a task that was given away could come up here once more",
    ),
    Bug(
        "assignment-of-another-boot",
        "coordinator/core/supervisor.py",
        "    return assignment if assignment is not None and assignment.boot_id == transition.me.boot_id else None",
        "    return assignment",
        "a worker that came back would start what its predecessor had, not fenced and not asked",
    ),
    Bug(
        "owner-is-fenced-by-the-leader",
        "coordinator/core/placement.py",
        "owned = {entry.id for tasks in self.assigned.values() for entry in tasks} | ownership.tasks_being_revoked()",
        "owned = ownership.tasks_being_revoked()",
        "a task that has just got its new owner would be fenced, and start twice",
    ),
    Bug(
        "lost-task-left-open",
        "coordinator/core/placement.py",
        "        if unfenced:\n            fences.record_fences(batch, unfenced)",
        "        pass",
        "what a dead task left open would hold back every reader until it times out",
    ),
    Bug(
        "paused-task-moves-without-a-fence",
        "coordinator/core/placement.py",
        "            ownership.blocked.add(task_id)\n",
        "            pass\n",
        "a paused source opens nothing, so its zombie would not be fenced by its new owner",
    ),
    Bug(
        "deadline-begins-anew",
        "coordinator/core/lost_workers.py",
        "        seen[key] = known if known and is_known else SeenDeadline(deadline.boot_id, deadline.cause, transition.mono)",
        "        seen[key] = SeenDeadline(deadline.boot_id, deadline.cause, transition.mono)",
        "lost work would wait again with each leader, and with each change of what waits",
    ),
    Bug(
        "deadline-ages-from-the-claim",
        "coordinator/core/leader.py",
        '    transition.lead = replace(transition.lead, role="claimed", epoch=epoch,',
        '    transition.lead = replace(transition.lead, deadlines_seen={}, role="claimed", epoch=epoch,',
        "lost work would wait again with each new leader",
    ),
    Bug(
        "journal-misses-a-move",
        "coordinator/core/placement.py",
        "        self._journal_move(task_id, target, why, source)\n",
        "        pass\n",
        "nobody could say why a task runs where it runs",
    ),
    Bug(
        "fenced-task-is-not-started-again",
        "coordinator/core/supervisor.py",
        '    if error.get("kind") == "fenced":\n',
        "    if False:\n",
        "a rightful owner that a zombie fenced would stay down",
    ),
    # --- a task's process -----------------------------------------------------------------------------------------------
    Bug(
        "fence-dropped",
        "worker/producers/transactional.py",
        "                    self._producer.init_transactions(step_s)",
        "                    pass",
        "a predecessor would go on to commit, and what it left open would stay",
        WORKER,
    ),
    Bug(
        "assignment-not-looked-up",
        "worker/source/runner.py",
        "            if not ports.assigned():",
        "            if False:",
        "a process that slept before its start would run a task that is another's by now",
        SOURCE,
    ),
    Bug(
        "assignment-looked-up-once",
        "worker/source/runner.py",
        "            if not ports.assigned():",
        "            if not self._sessions and not ports.assigned():",
        "who was fenced would take the id back without asking whether the task is still its own",
        SOURCE,
    ),
    Bug(
        "assignment-of-another-epoch",
        "worker/source/task_identity.py",
        "    if assignment is None or assignment.boot_id != spec.boot_id or entry not in assignment.tasks:",
        "    if assignment is None or assignment.boot_id != spec.boot_id:",
        "a process would go on although its task was revoked",
        SOURCE,
        modelled=True,
    ),
    Bug(
        "position-read-before-the-fence",
        "worker/source/runner.py",
        """            producer = ports.producer()
            self._registrar = registrar = ports.registrar()
            laps.note("fence_ms")
            if not ports.assigned():
                raise NotOwner
            laps.note("assigned_ms")
            stored = ports.position()
""",
        """            stored = ports.position()
            producer = ports.producer()
            self._registrar = registrar = ports.registrar()
            if not ports.assigned():
                raise NotOwner
""",
        "the position would be one that the predecessor has moved since",
        SOURCE,
    ),
    Bug(
        "assignment-read-before-the-fence",
        "worker/source/runner.py",
        """            producer = ports.producer()
            self._registrar = registrar = ports.registrar()
            laps.note("fence_ms")
            if not ports.assigned():
                raise NotOwner
""",
        """            if not ports.assigned():
                raise NotOwner
            producer = ports.producer()
            self._registrar = registrar = ports.registrar()
""",
        "a process that sleeps between the two would take over a task that is another's by now",
        SOURCE,
    ),
    Bug(
        "position-of-a-newer-owner-is-taken",
        "worker/source/runner.py",
        "        if stored.task_epoch > place.task_epoch:\n            raise NotOwner",
        "        if False:\n            raise NotOwner",
        "whoever finds the position of a newer owner is the older one",
        SOURCE,
    ),
    Bug(
        "position-read-to-the-stable-offset",
        "worker/source/start_reader.py",
        "        end = self._offset(topic, number, OffsetSpec.latest())\n",
        "        end = self._consumer.get_watermark_offsets(TopicPartition(topic, number), cached=False)[1]\n",
        "a position behind another task's open transaction would be missed, and its changes written twice",
        "tests/integration/coordinator/kafka/test_fencing_premises.py",
        deep=True,
    ),
    Bug(
        "left-open-is-not-looked-for",
        "worker/source/kafka_ports.py",
        "        self._settler.settle_data(reader.admin, self._written(), producers, reader.stored_at_ms)\n",
        "",
        "what was aborted without markers would be committed with the next transaction",
        "tests/integration/worker/source/test_open_transactions.py",
        deep=True,
    ),
    Bug(
        "left-open-is-always-aborted",
        "worker/source/open_transactions.py",
        "    return bool(written_ms <= stored_at_ms)\n",
        "    return False\n",
        "what was committed without markers would be lost",
        "tests/integration/worker/source/test_open_transactions.py",
        deep=True,
    ),
    Bug(
        "producer-reused-after-a-time-out",
        "worker/producers/transactional.py",
        "        self._spent = True\n        error = said = e.kafka_error(exc)",
        "        error = said = e.kafka_error(exc)",
        "a late commit of the old transaction would end the next one half written",
        WORKER,
    ),
    Bug(
        "session-goes-on-after-a-failed-commit",
        "worker/source/session.py",
        "        except CdcError as error:\n            raise self._named(error, position_bytes) from error\n",
        '        except CdcError as error:\n            log.info("%s", error)\n',
        "a commit that is not known to have happened would be acknowledged",
        SOURCE,
    ),
    Bug(
        "confirmed-before-the-commit",
        "worker/source/session.py",
        "        try:\n            self._producer.commit()\n",
        "        if position is not None:\n            self._parts.task.ack(position)\n"
        "        try:\n            self._producer.commit()\n",
        "the source would forget changes that Kafka does not have",
        SOURCE,
    ),
    Bug(
        "position-in-another-transaction",
        "worker/source/session.py",
        "        position_bytes = self._produce_position(position) if position is not None else 0\n",
        "        if position is not None:\n            self._producer.commit()\n            self._producer.begin()\n"
        "        position_bytes = self._produce_position(position) if position is not None else 0\n",
        "a crash between the two would write the changes twice",
        SOURCE,
    ),
    Bug(
        "committed-inside-a-source-transaction",
        "worker/source/session.py",
        '        if not self._at_boundary:\n            return ""\n        now',
        "        now",
        "half of a source transaction would become visible",
        SOURCE,
    ),
    Bug(
        "fenced-taken-for-passing",
        "worker/source/error_policy.py",
        '        return ErrorAction("yield", backoff(attempt))',
        '        return ErrorAction("retry", backoff(attempt))',
        "two owners that fight would go on fencing each other without a limit of their own",
        WORKER,
    ),
    # --- sinks ----------------------------------------------------------------------------------------------------------
    Bug(
        "sink-ignores-the-fence",
        "connectors/warehouses/postgres/ledger.py",
        "        if found is None or tuple(found[:2]) != self.epoch:",
        "        if found is None:",
        "a sink that slept would apply its old batch after its successor's",
        "tests/integration/connectors/warehouses/postgres/test_writer.py",
        deep=True,
    ),
    Bug(
        "sink-ignores-the-ledgers-epoch",
        "connectors/warehouses/sql/ledger.py",
        "        if (task_epoch, attempt) > epoch:",
        "        if False:",
        "a task of an older split would apply topics that another task has by now",
        "tests/integration/connectors/warehouses/postgres/test_writer.py",
        deep=True,
    ),
    Bug(
        "sink-lowers-the-fence",
        "connectors/warehouses/postgres/ledger.py",
        "               where (f.task_epoch, f.attempt) <= (excluded.task_epoch, excluded.attempt)\n",
        "",
        "an older owner that comes late would fence its successor",
        "tests/integration/connectors/warehouses/postgres/test_writer.py",
        deep=True,
    ),
)
