"""Looking after workers that fell silent: one that does not even listen any more need not be waited for."""

from __future__ import annotations

import logging
from dataclasses import replace

from cdcworker.coordinator.events import ProbeWorker, WorkerProbed
from cdcworker.coordinator.herd_state import Probe, Turn
from cdcworker.coordinator.status import silent_workers

logger = logging.getLogger(__name__)


def probe_silent(turn: Turn) -> None:
    """Every worker looks, not only the leader: who leads next knows at once whose tasks are free.

    A verdict is a hint that saves time. Whoever is taken for gone and is not finds its tasks fenced.
    """
    silent = silent_workers(turn.status, turn.settings.probe_after_s)
    probes = turn.work.probes
    if not silent and not probes:
        return
    kept = {}
    for worker_id, presence in silent.items():
        lease = turn.status.leases[worker_id]
        if worker_id == turn.me.worker_id or turn.status.clock_s - lease.seen_s > turn.settings.session_timeout_s:
            continue
        probe = probes.get(worker_id)
        if probe is None or probe.lease != lease or turn.mono >= probe.due:
            probe = Probe(lease, turn.mono + turn.settings.probe_answer_s)
            turn.emit(ProbeWorker(worker_id, presence.boot_id, presence.url))
        kept[worker_id] = probe
    if kept != probes:
        turn.work = replace(turn.work, probes=kept)


def on_probed(turn: Turn, event: WorkerProbed) -> None:
    """Counts only while the lease is still the one that did not advance: another sign of life outweighs it."""
    probe, lease = turn.work.probes.get(event.worker_id), turn.status.leases.get(event.worker_id)
    if probe is None or lease is None or lease != probe.lease or lease.boot_id != event.boot_id:
        return
    if event.verdict == "gone":
        logger.warning("worker probed gone worker=%s boot=%s", event.worker_id, event.boot_id)
        turn.status = replace(turn.status, gone={**turn.status.gone, event.worker_id: lease})
    probe = replace(probe, due=turn.mono + turn.settings.probe_every_s)
    turn.work = replace(turn.work, probes={**turn.work.probes, event.worker_id: probe})
