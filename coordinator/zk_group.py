"""Leadership by a ZooKeeper lock: who holds it is the leader-elect, the czxid of its node is the claim's number.

ZooKeeper's client works on threads of its own. They, and ours here, only leave notes; the herder reads them in `tick`,
which never waits for a server.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from cdcworker.coordinator import zk_errors as e
from cdcworker.coordinator.api import Term
from cdcworker.coordinator.zk_client import ZkSettings, client_errors, end_client, ensemble_id, make_client

log = logging.getLogger(__name__)

WATCH_S = 0.2
ACQUIRE_S = 10.0
"""One wait for the lock lasts no longer, then it is queued for anew: this bounds what a dead client can hold up."""
SESSIONS_AWAY_MAX = 2.0
HUNG_S = 30.0
"""A herder that has not ticked for so long loses the lock although its session lives, as it would lose a group."""
LEAVE_S = 1.5
SAY_AGAIN_S = 60.0

MayLead = Callable[[str], bool]


class ZkLeadership:
    """A contender for the group's lock. Its methods are for one thread."""

    def __init__(self, settings: ZkSettings, *, group_id: str, name: str) -> None:
        self._settings = settings
        self._paths = settings.node(group_id, "leader"), settings.node(group_id, "ensemble")
        self._name = name
        self._term: Term | None = None
        self._ticked = time.monotonic()
        self._closing = threading.Event()
        self._current: _Contender | None = None
        self._minder = threading.Thread(target=self._mind, name="zk-minder", daemon=True)
        self.recorded = ""
        """The ensemble that numbers the claims in the log: of another one no lock is kept. Empty: any will do."""

    def open(self, timeout_s: float) -> str:
        """Reach the ensemble; gives its identity."""
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
        """The names of those who hold the lock or wait for it; between `open` and `join`."""
        assert self._current is not None
        try:
            found = self._current.client.Lock(self._paths[0]).contenders()
        except client_errors() as exc:
            raise e.translate(exc, "list the contenders for the lock") from exc
        return [str(name) for name in found]

    def join(self) -> None:
        """Begin to wait for the lock."""
        self._ticked = time.monotonic()
        if self._current is not None:
            self._current.start()
        self._minder.start()

    def tick(self, timeout_s: float) -> None:
        """Take the notes; `timeout_s` is how long to wait for one when there is none."""
        self._ticked = time.monotonic()
        contender = self._current
        if timeout_s > 0 and contender is not None and self._held() == self._term:
            contender.news.wait(timeout_s)
            contender.news.clear()
        held = self._held()
        # Between two lock nodes another may have led: the end of the first term has to be seen.
        self._term = held if self._term is None or held == self._term else None

    def term(self) -> Term | None:
        return self._term if self._term == self._held() else None

    def close(self) -> None:
        """End the session, which frees the lock at once; a server that does not answer is not waited for long."""
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
        return self.recorded in ("", ensemble)

    # --- the minder's thread ----------------------------------------------------------------------------------------

    def _mind(self) -> None:
        """Replace a contender that cannot win any more."""
        while not self._closing.wait(WATCH_S):
            contender = self._current
            if contender is None:
                if not self._is_hung():
                    self._renew()
                continue
            reason = self._unfit(contender)
            if reason is not None:
                log.warning("lock given up reason=%s", reason)
                self._current = None
                contender.discard()

    def _unfit(self, contender: _Contender) -> str | None:
        if self._is_hung():
            return "the herder hangs"
        if contender.lost:
            return "the session is over"
        if contender.away_s() > SESSIONS_AWAY_MAX * self._settings.session_timeout_s:
            # An ensemble that was rebuilt refuses for ever a client that has seen a later state than its own.
            return "no server has taken the session for long"
        return None

    def _renew(self) -> None:
        contender = self._contender()
        contender.client.start_async()
        contender.start()
        self._current = contender
        if self._closing.is_set():
            contender.discard()

    def _is_hung(self) -> bool:
        return time.monotonic() - self._ticked > max(HUNG_S, self._settings.session_timeout_s)


class _Contender:
    """One session's attempt to get the lock and to keep it. `held` is the note that it leaves."""

    def __init__(self, client: Any, paths: tuple[str, str], name: str, may_lead: MayLead) -> None:
        self.client = client
        self.held: Term | None = None
        self.lost = False
        self.news = threading.Event()
        self._lock_path, self._ensemble_path = paths
        self._name = name
        self._may_lead = may_lead
        self._mutex = threading.Lock()
        self._wake = threading.Event()
        self._dead = threading.Event()
        self._breaks = 0
        self._away_since: float | None = time.monotonic()
        self._lock: Any = None
        self._ensemble = ""
        self._said_at = -SAY_AGAIN_S
        client.add_listener(self._on_state)

    def start(self) -> None:
        threading.Thread(target=self._run, name="zk-lock", daemon=True).start()

    def away_s(self) -> float:
        """How long no server has answered."""
        since = self._away_since
        return 0.0 if since is None else time.monotonic() - since

    def discard(self) -> threading.Thread:
        """End the session. The thread that does it may take as long as the client wants."""
        self._dead.set()
        self._break()
        leaving = threading.Thread(target=end_client, args=(self.client,), name="zk-leave", daemon=True)
        leaving.start()
        return leaving

    # --- called by the client's threads: they leave notes and return ------------------------------------------------

    def _on_state(self, state: str) -> None:
        """A connection that broke may be the end of the session: whoever knows better leads meanwhile."""
        if state == "CONNECTED":
            self._away_since = None
        else:
            self._away_since = self._away_since or time.monotonic()
            self._break()
            self.lost = self.lost or state == "LOST"
        self._wake.set()

    def _on_node(self, _event: object) -> None:
        """Something happened to the lock's node: look again whether it is there."""
        self._break()

    def _break(self) -> None:
        with self._mutex:
            self._breaks += 1
            self.held = None
        self.news.set()
        self._wake.set()

    # --- the contender's thread -------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not (self._dead.is_set() or self.lost):
            self._wake.clear()
            try:
                self._step()
            except client_errors() as exc:
                if not (self._dead.is_set() or self.lost):
                    self._say("lock not taken error=%s", e.translate(exc, "wait for the lock"))
            self._wake.wait(WATCH_S)

    def _step(self) -> None:
        if not self.client.connected:
            return
        breaks = self._breaks
        self._ensemble = self._ensemble or ensemble_id(self.client, self._ensemble_path)
        if not self._may_lead(self._ensemble):
            self._let_go()
        elif self._lock is None:
            lock = self.client.Lock(self._lock_path, self._name)
            if lock.acquire(timeout=ACQUIRE_S):
                self._lock = lock
                self._take(breaks)
        elif self.held is None:
            self._take(breaks)

    def _take(self, breaks: int) -> None:
        """The lock is ours while its node is there and belongs to this very session."""
        path = f"{self._lock_path}/{self._lock.node}"
        self.client.sync(path)
        stat = self.client.exists(path, watch=self._on_node)
        if stat is None or self.client.client_id is None or stat.ephemeralOwner != self.client.client_id[0]:
            self._lock = None
            return
        with self._mutex:
            if breaks == self._breaks and self._may_lead(self._ensemble):
                self.held = Term(None, stat.czxid, self._ensemble)
                log.info("elected czxid=%d", stat.czxid)
        self.news.set()

    def _let_go(self) -> None:
        self._say("no lock is taken error=ensemble %s does not number the log's claims", self._ensemble)
        lock, self._lock = self._lock, None
        if lock is not None:
            self._break()
            lock.release()

    def _say(self, text: str, what: object) -> None:
        if time.monotonic() - self._said_at >= SAY_AGAIN_S:
            self._said_at = time.monotonic()
            log.warning(text, what)
