"""Leadership by a ZooKeeper lock: its holder is elected, and the czxid of its lock node numbers the claim.

kazoo's threads and those of this module only set fields; the herder reads them in `tick`, which never waits for a
server.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from cdcworker.coordinator.api import Term
from cdcworker.coordinator.zookeeper import errors as e
from cdcworker.coordinator.zookeeper.client import ZkSettings, client_errors, end_client, ensemble_id, make_client
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.threads import SupervisedThread, start_thread

log = logging.getLogger(__name__)

WATCH_S = 0.2
ACQUIRE_S = 10.0
"""The longest wait for the lock before queueing for it again, which bounds how long a dead client blocks the thread."""
SESSIONS_AWAY_MAX = 2.0
"""The number of session time-outs without a connection after which the client is replaced."""
HUNG_S = 30.0
"""A herder that has not called `tick` for so long gives up the lock, as it would lose its place in a Kafka group."""
LEAVE_S = 1.5
"""The longest wait of `close` for the end of the session."""
LOG_INTERVAL_S = 60.0

MayLead = Callable[[str], bool]
"""Tells whether a lock of this ensemble may be taken."""


class ZkLeadership:
    """Contends for the group's lock. Its public methods belong to one thread."""

    def __init__(self, settings: ZkSettings, *, group_id: str, name: str) -> None:
        self._settings = settings
        self._paths = settings.node(group_id, "leader"), settings.node(group_id, "ensemble")
        self._name = name
        self._term: Term | None = None
        self._ticked = time.monotonic()
        self._closing = threading.Event()
        self._current: _Contender | None = None
        self._monitor = SupervisedThread(self._run_monitor, name="zk-monitor", restart_until=self._closing)
        self._recorded = ""

    def open(self, timeout_s: float) -> str:
        """Connects to the ensemble and returns its identity. Raises CdcError when that takes longer than
        `timeout_s`."""
        contender = self._contender()
        try:
            contender.client.start(timeout_s)
            ensemble = ensemble_id(contender.client, self._paths[1])
        except client_errors() as exc:
            contender.discard()
            raise e.translate(exc, "reach ZooKeeper", where={"zookeeper.connect": self._settings.connect}) from exc
        self._current = contender
        return ensemble

    def contenders(self) -> list[str]:
        """Returns the names of all contenders for the lock; to be called between `open` and `join`."""
        assert self._current is not None
        try:
            names = self._current.client.Lock(self._paths[0]).contenders()
        except client_errors() as exc:
            raise e.translate(exc, "list the contenders for the lock") from exc
        return [str(name) for name in names]

    def join(self) -> None:
        """Starts to contend for the lock."""
        self._ticked = time.monotonic()
        if self._current is not None:
            self._current.start()
        self._monitor.start()

    def record(self, ensemble: str) -> None:
        """Takes the identity of the ensemble that numbers the claims in the log: from here on no lock of another one is kept.
        Before, and for an empty identity, any one's is."""
        self._recorded = ensemble

    def tick(self, timeout_s: float) -> None:
        """Updates the term; waits at most `timeout_s` for a change."""
        self._ticked = time.monotonic()
        contender = self._current
        if timeout_s > 0 and contender is not None and self._held() == self._term:
            contender.changed.wait(timeout_s)
            contender.changed.clear()
        held = self._held()
        # Another worker may have led between two lock nodes, so the end of the first term has to be visible.
        self._term = held if self._term is None or held == self._term else None

    def term(self) -> Term | None:
        """Returns the present term; None while this worker does not hold the lock."""
        return self._term if self._term == self._held() else None

    def remove(self, node: str, czxid: int) -> None:
        """Deletes the lock node of a leader that is gone, which ends its term. Does nothing when the node is not there
        any more. Callable from any thread; raises CdcError when ZooKeeper does not answer.

        The number in the name of a node is never given again, so a late call cannot end the term of another leader.
        """
        from kazoo.exceptions import NoNodeError

        contender = self._current
        if contender is None or "/" in node:
            raise CdcError(e.UNREACHABLE, "no session with ZooKeeper, or not the name of a lock node")
        path = f"{self._paths[0]}/{node}"
        try:
            stat = contender.client.exists(path)
            if stat is not None and stat.czxid == czxid:
                contender.client.delete(path)
        except NoNodeError:
            return
        except client_errors() as exc:
            raise e.translate(exc, "delete the lock node of a dead leader") from exc

    def close(self) -> None:
        """Ends the session, which frees the lock at once; waits at most `LEAVE_S` for a server that does not answer."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._term = None
        contender = self._current
        if contender is not None:
            contender.discard().join(LEAVE_S)

    def _held(self) -> Term | None:
        contender = self._current
        return None if contender is None or self._closing.is_set() else contender.held

    def _contender(self) -> _Contender:
        return _Contender(make_client(self._settings), self._paths, self._name, self._may_lead)

    def _may_lead(self, ensemble: str) -> bool:
        return self._recorded in ("", ensemble)

    # --- the monitor's thread ---------------------------------------------------------------------------------------

    def _run_monitor(self) -> None:
        """Replaces a contender that can no longer get the lock."""
        while not self._closing.wait(WATCH_S):
            contender = self._current
            if contender is None:
                if not self._is_hung():
                    self._replace()
                continue
            reason = self._reason_to_replace(contender)
            if reason is not None:
                log.warning("lock given up reason=%s", reason)
                self._current = None
                contender.discard()

    def _reason_to_replace(self, contender: _Contender) -> str | None:
        if self._is_hung():
            return "the herder hangs"
        if contender.lost:
            return "the session is over"
        if contender.away_s() > SESSIONS_AWAY_MAX * self._settings.session_timeout_s:
            # A rebuilt ensemble refuses for ever a client that has seen a later state than its own.
            return "no server has accepted the session for long"
        return None

    def _replace(self) -> None:
        contender = self._contender()
        contender.client.start_async()
        contender.start()
        self._current = contender
        if self._closing.is_set():
            contender.discard()

    def _is_hung(self) -> bool:
        return time.monotonic() - self._ticked > max(HUNG_S, self._settings.session_timeout_s)


class _Contender:
    """One ZooKeeper session's attempt to get and keep the lock. `held` is the term while it has the lock."""

    def __init__(self, client: Any, paths: tuple[str, str], name: str, may_lead: MayLead) -> None:
        self.client = client
        self.held: Term | None = None
        self.lost = False
        self.changed = threading.Event()
        self._lock_path, self._ensemble_path = paths
        self._name = name
        self._may_lead = may_lead
        self._mutex = threading.Lock()
        self._wake = threading.Event()
        self._discarded = threading.Event()
        self._interruptions = 0
        self._away_since: float | None = time.monotonic()
        self._lock: Any = None
        self._ensemble = ""
        self._logged_at = -LOG_INTERVAL_S
        client.add_listener(self._on_state)

    def start(self) -> None:
        start_thread(self._run, name="zk-lock")

    def away_s(self) -> float:
        """Returns for how many seconds there has been no connection."""
        since = self._away_since
        return 0.0 if since is None else time.monotonic() - since

    def discard(self) -> threading.Thread:
        """Ends the session on a thread of its own, which is returned: the client may block."""
        self._discarded.set()
        self._end_term()
        return start_thread(end_client, self.client, name="zk-leave")

    # --- called by kazoo's threads: they set fields and return ------------------------------------------------------

    def _on_state(self, state: str) -> None:
        """Takes a change of the connection. A lost connection may be the end of the session, so the term ends with
        it."""
        if state == "CONNECTED":
            self._away_since = None
        else:
            self._away_since = self._away_since or time.monotonic()
            self._end_term()
            self.lost = self.lost or state == "LOST"
        self._wake.set()

    def _on_node(self, _event: object) -> None:
        """Ends the term after a change of the lock node, until it was checked again."""
        self._end_term()

    def _end_term(self) -> None:
        with self._mutex:
            self._interruptions += 1
            self.held = None
        self.changed.set()
        self._wake.set()

    # --- the contender's thread -------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not (self._discarded.is_set() or self.lost):
            self._wake.clear()
            try:
                self._step()
            except client_errors() as exc:
                if not (self._discarded.is_set() or self.lost):
                    self._log_rarely("lock not taken error=%s", e.translate(exc, "wait for the lock"))
            self._wake.wait(WATCH_S)

    def _step(self) -> None:
        if not self.client.connected:
            return
        interruptions = self._interruptions
        self._ensemble = self._ensemble or ensemble_id(self.client, self._ensemble_path)
        if not self._may_lead(self._ensemble):
            self._release()
        elif self._lock is None:
            lock = self.client.Lock(self._lock_path, self._name)
            if lock.acquire(timeout=ACQUIRE_S):
                self._lock = lock
                self._take(interruptions)
        elif self.held is None:
            self._take(interruptions)

    def _take(self, interruptions: int) -> None:
        """Starts a term if the lock node exists and belongs to this session."""
        path = f"{self._lock_path}/{self._lock.node}"
        self.client.sync(path)
        stat = self.client.exists(path, watch=self._on_node)
        if stat is None or self.client.client_id is None or stat.ephemeralOwner != self.client.client_id[0]:
            self._lock = None
            return
        with self._mutex:
            if interruptions == self._interruptions and self._may_lead(self._ensemble):
                self.held = Term(None, stat.czxid, self._ensemble, self._lock.node)
                log.info("elected czxid=%d", stat.czxid)
        self.changed.set()

    def _release(self) -> None:
        self._log_rarely("the lock is not taken error=ensemble %s does not number the log's claims", self._ensemble)
        lock, self._lock = self._lock, None
        if lock is not None:
            self._end_term()
            lock.release()

    def _log_rarely(self, text: str, what: object) -> None:
        if time.monotonic() - self._logged_at >= LOG_INTERVAL_S:
            self._logged_at = time.monotonic()
            log.warning(text, what)
