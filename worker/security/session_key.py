"""Renewal of the session key: the leading worker writes a new key when there is none or the newest has become old."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable
from typing import Final, Protocol

from cdcworker.coordinator.model import PutSetting, Reply, View
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.threads import repeated
from cdcworker.worker.http.errors import RestError
from cdcworker.worker.security.signing import SESSION_KEY, keys_of, next_value

log = logging.getLogger(__name__)

LOOK_EVERY_S: Final = 0.5


class KeyLog(Protocol):
    """The cluster's log as far as the session key needs it."""

    def view(self) -> View:
        """Returns the cluster as this worker knows it."""

    async def ask(self, command: PutSetting) -> Reply:
        """Has the leader write a setting and returns its reply."""


@contextlib.asynccontextmanager
async def renewed(cluster: KeyLog, ttl_s: float) -> AsyncIterator[None]:
    """Keeps the session key younger than `ttl_s` seconds while the server runs; 0 leaves the key alone.

    Every worker checks the key; only the leader writes a new one.
    """
    if not ttl_s:
        yield
        return

    async def try_to_renew() -> None:
        try:
            await renew(cluster, ttl_s)
        except (CdcError, RestError) as error:
            log.warning("session key not renewed error=%s", error)

    async with repeated(try_to_renew, LOOK_EVERY_S, name="session-key"):
        yield


async def renew(cluster: KeyLog, ttl_s: float, clock: Callable[[], float] = time.time) -> bool:
    """Writes a new key if this worker leads and the newest key is older than `ttl_s`; returns whether it did."""
    view = cluster.view()
    if not view.ready or not view.is_leader:
        return False
    keys, now_ms = keys_of(view.state.settings), round(clock() * 1000)
    if keys and 0 <= now_ms - keys[0].created_ms < ttl_s * 1000:
        return False
    reply = await cluster.ask(PutSetting(SESSION_KEY, next_value(keys, now_ms)))
    if reply.outcome == "ok":
        log.info("session key renewed keys=%d", len(keys) + 1)
    return reply.outcome == "ok"
