"""How a connector comes into being besides its config: once only for one key, and from offsets that come with it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from cdcworker.coordinator.model import DeleteConnector, PutConnector, Reply
from cdcworker.coordinator.requests import MADE_BY
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.offsets import Offset
from cdcworker.worker.rest import errors as e
from cdcworker.worker.rest import offsets
from cdcworker.worker.rest.body import read_plain
from cdcworker.worker.rest.context import Api, forward, refusal
from starlette.requests import Request
from starlette.responses import Response

KEY: Final = "idempotency-key"
KEY_FORM: Final = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]{0,253}[\x21-\x7e])?")
OFFSETS: Final = "initial_offsets"


def mark_of(request: Request, body: Any) -> str:
    """Of a request with a key: the same key and the same content give the same mark. "" without a key."""
    key = request.headers.get(KEY)
    if key is None:
        return ""
    if not KEY_FORM.fullmatch(key):
        raise e.bad_request("Idempotency-Key must be 1 to 255 printable ASCII characters")
    text = json.dumps([key, body], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def is_repeated(api: Api, command: PutConnector) -> bool:
    """Whether the connector that exists was made by this very request: its answer was lost, and it is sent again."""
    found = api.view().state.connectors.get(command.name)
    return bool(command.mark) and found is not None and found.extra.get(MADE_BY) == command.mark


@contextlib.contextmanager
def _placed() -> Iterator[None]:
    """What is wrong with an item lies under the member's own name here."""
    try:
        yield
    except e.RestError as error:
        path = error.members.get("configPath") or ""
        if path.startswith("/offsets/"):
            error.members["configPath"] = f"/{OFFSETS}{path.removeprefix('/offsets')}"
        raise


async def initial_offsets(request: Request, body: Mapping[str, Any]) -> list[Any] | None:
    """In the form of PATCH .../offsets; None when there are none."""
    if body.get(OFFSETS) is None:
        return None
    given = (await read_plain(request))[OFFSETS]
    if not isinstance(given, list):
        raise e.bad_request(f"`{OFFSETS}` must be a list", f"/{OFFSETS}")
    with _placed():
        for number, item in enumerate(given):
            offsets.check_item(item, str(number))
    return given or None


def parsed(items: list[Any], kind: str) -> list[Offset]:
    with _placed():
        return offsets.parse(items, kind)


async def carry_out(
    api: Api, request: Request, command: PutConnector, changes: list[Offset], done: Callable[[Reply], Response]
) -> Response:
    reply = await _create(api, command, changes)
    if reply.outcome == "ok":
        return done(reply)
    if reply.outcome == "not_leader":
        return await forward(api, request, reply.leader_url, checked=True, epoch=reply.leader_epoch)
    raise refusal(api, reply, command.name, f"Connector {command.name} not found")


async def _create(api: Api, command: PutConnector, changes: list[Offset]) -> Reply:
    """For the leader: made stopped, given its offsets, then brought to the state that is wanted. It never runs from
    somewhere else, and one that cannot have them is taken back."""
    made = await api.ask(replace(command, target_state="STOPPED"))
    if made.outcome != "ok":
        return made
    try:
        connector = api.connector(command.name)
        barrier = await offsets.stopped(api, connector)
        with _placed():
            await offsets.alter(api, connector, barrier, changes)
    except (CdcError, e.RestError):
        await api.ask(DeleteConnector(command.name, if_version=made.version))
        raise
    wanted = command.target_state or "RUNNING"
    if wanted == "STOPPED":
        return made
    begun = await api.ask(PutConnector(command.name, None, target_state=wanted, must_exist=True))
    return replace(begun, created=begun.outcome == "ok")
