"""Creation of connectors beyond their config: idempotency keys and initial offsets."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from cdcworker.coordinator.core.requests import MADE_BY
from cdcworker.coordinator.model import DeleteConnector, PutConnector, Reply
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.http import errors as e
from cdcworker.worker.http.body import read_plain
from cdcworker.worker.offsets.model import ConnectorOffset
from cdcworker.worker.rest.commands import forward_to_leader
from cdcworker.worker.rest.context import ApiContext
from cdcworker.worker.rest.refusals import refusal
from cdcworker.worker.rest.resources import offsets
from starlette.requests import Request
from starlette.responses import Response

KEY: Final = "idempotency-key"
KEY_FORM: Final = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]{0,253}[\x21-\x7e])?")
OFFSETS: Final = "initial_offsets"


def mark_of(request: Request, body: Any) -> str:
    """Returns the mark of a request with an Idempotency-Key: the same key and content give the same mark. Empty without
    a key."""
    key = request.headers.get(KEY)
    if key is None:
        return ""
    if not KEY_FORM.fullmatch(key):
        raise e.bad_request("Idempotency-Key must be 1 to 255 printable ASCII characters")
    text = json.dumps([key, body], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def is_repeated(api: ApiContext, command: PutConnector) -> bool:
    """Returns whether the existing connector was created by this very request, which the client has sent again."""
    connector = api.view().state.connectors.get(command.name)
    return bool(command.mark) and connector is not None and connector.extra.get(MADE_BY) == command.mark


@contextlib.contextmanager
def _placed() -> Iterator[None]:
    """Moves the path of an error in the offsets to the member's own name in this request."""
    try:
        yield
    except e.RestError as error:
        path = error.members.get("configPath") or ""
        if path.startswith("/offsets/"):
            error.members["configPath"] = f"/{OFFSETS}{path.removeprefix('/offsets')}"
        raise


async def initial_offsets(request: Request, body: Mapping[str, Any]) -> list[Any] | None:
    """Returns the offsets in the form of PATCH .../offsets, None when there are none."""
    if body.get(OFFSETS) is None:
        return None
    given = (await read_plain(request))[OFFSETS]
    if not isinstance(given, list):
        raise e.bad_request(f"`{OFFSETS}` must be a list", f"/{OFFSETS}")
    with _placed():
        for number, item in enumerate(given):
            offsets.check_item(item, str(number))
    return given or None


def parsed(items: list[Any], kind: str) -> list[ConnectorOffset]:
    with _placed():
        return offsets.parse(items, kind)


async def carry_out(
    api: ApiContext,
    request: Request,
    command: PutConnector,
    changes: list[ConnectorOffset],
    done: Callable[[Reply], Response],
) -> Response:
    """Creates the connector with its offsets at the leader and returns the answer."""
    reply, warning = await _create(api, request, command, changes)
    if reply.outcome == "ok":
        answer = done(reply)
        answer.headers.update(offsets.warning_headers(warning))
        return answer
    if reply.outcome == "not_leader":
        return await forward_to_leader(api, request, reply.leader_url, checked=True, epoch=reply.leader_epoch)
    raise refusal(api, reply, command.name, f"Connector {command.name} not found")


async def _create(
    api: ApiContext, request: Request, command: PutConnector, changes: list[ConnectorOffset]
) -> tuple[Reply, str]:
    """Creates the connector stopped, alters its offsets, then brings it to its target state. Returns a warning besides, where
    nobody could tell whether a task can start from them.

    So it never starts from other offsets. A connector that cannot have them is deleted again.
    """
    reply = await api.ask(replace(command, target_state="STOPPED"))
    if reply.outcome != "ok":
        return reply, ""
    try:
        connector = api.running(command.name)
        barrier = await offsets.stopped(api, connector)
        with _placed():
            own, notes = await offsets.translated(api, request, connector, changes)
            warning = " ".join(filter(None, (await offsets.verified(api, request, connector, own), *notes)))
            await offsets.alter(api, request, connector, barrier, own)
    except (CdcError, e.RestError):
        await api.ask(DeleteConnector(command.name, if_version=reply.version))
        raise
    target_state = command.target_state or "RUNNING"
    if target_state == "STOPPED":
        return reply, warning
    started = await api.ask(PutConnector(command.name, None, target_state=target_state, must_exist=True))
    return replace(started, created=started.outcome == "ok"), warning
