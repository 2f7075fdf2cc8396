"""Keeps the session key fresh: the leading worker writes a new one when there is none or it has become old."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Final

from cdcworker.coordinator.model import PutSetting
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.rest.errors import RestError
from cdcworker.worker.security.signing import SESSION_KEY, keys_of, next_value

if TYPE_CHECKING:
    from cdcworker.worker.rest.context import Api

log = logging.getLogger(__name__)

LOOK_EVERY_S: Final = 0.5


@contextlib.asynccontextmanager
async def kept(api: Api) -> AsyncIterator[None]:
    """As long as the server runs; every worker looks, only the leader acts. Without a time to live nothing is kept."""
    ttl_s = api.settings.session_key_ttl_s
    keeper = asyncio.create_task(keep(api, ttl_s)) if ttl_s else None
    try:
        yield
    finally:
        if keeper is not None:
            keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await keeper


async def keep(api: Api, ttl_s: float, clock: Callable[[], float] = time.time) -> None:
    while True:
        try:
            await renew(api, ttl_s, clock)
        except (CdcError, RestError) as error:
            log.warning("session key not renewed error=%s", error)
        except Exception as error:
            log.exception("session key not renewed error=%s", type(error).__name__)
        await asyncio.sleep(LOOK_EVERY_S)


async def renew(api: Api, ttl_s: float, clock: Callable[[], float] = time.time) -> bool:
    """Whether a new key was written."""
    view = api.view()
    if not view.ready or not view.is_leader:
        return False
    keys, now_ms = keys_of(view.state.settings), round(clock() * 1000)
    if keys and 0 <= now_ms - keys[0].created_ms < ttl_s * 1000:
        return False
    reply = await api.ask(PutSetting(SESSION_KEY, next_value(keys, now_ms)))
    if reply.outcome == "ok":
        log.info("session key renewed keys=%d", len(keys) + 1)
    return reply.outcome == "ok"
