"""Offsets of connectors: shown by any worker, altered and reset by the leader while the connector is stopped."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from cdcworker.coordinator.model import Connector
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.http import errors as e
from cdcworker.worker.http.body import read_plain
from cdcworker.worker.offsets.model import (
    BAD_POSITION,
    INTERRUPTED,
    UNKNOWN_PARTITION,
    ConnectorOffset,
    MovesOffsets,
    TranslatesOffsets,
    VerifiesOffsets,
)
from cdcworker.worker.offsets.sink import OFFSET, PARTITION, TOPIC
from cdcworker.worker.offsets.source import without_keys
from cdcworker.worker.rest import connect_json
from cdcworker.worker.rest.commands import forward_to_leader
from cdcworker.worker.rest.context import ApiContext
from cdcworker.worker.rest.dry_run import DRY_RUN, dry_run_answer, is_dry_run
from cdcworker.worker.rest.routing import Endpoint
from cdcworker.worker.rest.slow_calls import AllBusy
from cdcworker.worker.security.access import caller_of, require
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

T = TypeVar("T")

PATH = "/connectors/{connector}/offsets"
DRY = (DRY_RUN,)
FORM = "form"
DEBEZIUM = "debezium"
WAIT_S = 10.0
OWN_WAIT_S = 30.0
"""Seconds that a request waits for earlier ones of the same user, which keeps nobody else waiting."""
NOT_FOUND = "Connector {} not found"
EMPTY = "Partitions / offsets need to be provided for an alter offsets request"
MANAGED = "The offsets for this connector have been {} successfully"
UNMANAGED = (
    "The Connect framework-managed offsets for this connector have been {0} successfully. However, if this connector "
    "manages offsets externally, they will need to be manually {0} in the system that the connector uses."
)
TO, TASK = "to", "task"
"""The members of a body that says where to go on by meaning."""
TO_CHARS_MAX = 10_000
NUMBER = re.compile(r"[+-]?[0-9]{1,19}")
PARTS = {UNKNOWN_PARTITION: "partition", BAD_POSITION: "offset"}
"""The part of an item that an error is about, by the error's code."""
WARNING = "X-CDC-Warning"
INT_MAX = (1 << 31) - 1
LONG_MAX = (1 << 63) - 1


async def get_offsets(api: ApiContext, request: Request) -> Response:
    """Answers all that is stored to callers who may see rows, and to others what holds no key of one."""
    connector = api.running(request.path_params["connector"], NOT_FOUND)
    if _form(request) == DEBEZIUM:
        return await _in_debeziums_form(api, request, connector)
    found = await off_loop(api, request, lambda: api.offsets.read(connector))
    if not caller_of(request.scope).may("operate", connector.name):
        found = await off_loop(api, request, lambda: without_keys(connector, found))
    return JSONResponse({"offsets": [{"partition": dict(item.partition), "offset": item.offset} for item in found]})


def _form(request: Request) -> str:
    """Returns the form in which offsets are asked for. RestError 400 for one that there is not: the answer would be another one."""
    form = request.query_params.get(FORM, "")
    if form not in ("", DEBEZIUM):
        raise e.bad_request(f"`{FORM}` must be {DEBEZIUM}", e.parameter(FORM))
    return form


async def _in_debeziums_form(api: ApiContext, request: Request, connector: Connector) -> Response:
    """Answers the offsets with which Debezium's connector goes on where this one has stopped."""
    # The source's database is asked, which readers have no right to cause.
    require(request.scope, "operate", connector.name)
    service = api.offsets
    if not isinstance(service, TranslatesOffsets):
        raise e.not_available("Offsets in Debezium's form")
    await stopped(api, connector)
    await _ended(api, connector)
    found = await off_loop(api, request, lambda: service.to_debezium(connector))
    items = [{"partition": dict(item.partition), "offset": item.offset} for item in found.offsets]
    return JSONResponse({"offsets": items, "notes": list(found.notes)})


async def alter_offsets(api: ApiContext, request: Request) -> Response:
    """Alters offsets to those of the body, or with `to` in place of `offsets` by what they mean."""
    body = await read_plain(request)
    if isinstance(body, dict) and TO in body:
        return await _change(api, request, _place(body), "altered")
    return await _change(api, request, _items(body), "altered")


@dataclass(frozen=True)
class _Place:
    """Where the tasks are to go on, all of them or one."""

    to: str
    task: int | None = None


def _place(body: dict[str, Any]) -> _Place:
    unknown = next((name for name in body if name not in (TO, TASK)), None)
    if unknown is not None:
        raise e.bad_request(f"Unknown member {unknown!r} beside {TO}: only {TASK} exists", e.pointer(unknown))
    to, task = body[TO], body.get(TASK)
    if not isinstance(to, str) or not 0 < len(to.strip()) <= TO_CHARS_MAX:
        raise e.bad_request("`to` must be earliest, now, skip or a position", f"/{TO}")
    if isinstance(task, bool) or not isinstance(task, int | None) or not 0 <= (task or 0) <= INT_MAX:
        raise e.bad_request("`task` must be the number of a task", f"/{TASK}")
    return _Place(to.strip(), task)


async def reset_offsets(api: ApiContext, request: Request) -> Response:
    return await _change(api, request, None, "reset")


async def _change(api: ApiContext, request: Request, asked: list[Any] | _Place | None, done: str) -> Response:
    name, view = request.path_params["connector"], api.view()
    leader = view.state.leader
    if leader is None:
        raise e.no_leader()
    if not view.is_leader:
        return await forward_to_leader(api, request, leader.url)
    connector = api.running(name, NOT_FOUND)
    barrier = await stopped(api, connector)
    dry_run = is_dry_run(request)
    changes, notes = await _changes(api, request, connector, asked)
    warning = " ".join(filter(None, (await verified(api, request, connector, changes), *notes)))
    before = await off_loop(api, request, lambda: api.offsets.read(connector)) if dry_run else ()
    managed = await alter(api, request, connector, barrier, changes, dry_run=dry_run)
    if dry_run:
        warned = {"warning": warning} if warning else {}
        return dry_run_answer(connector=name, effect=done, offsets=_effect(before, changes), **warned)
    return JSONResponse({"message": (MANAGED if managed else UNMANAGED).format(done)}, headers=warning_headers(warning))


def warning_headers(warning: str) -> dict[str, str]:
    """Returns the header of an answer that warns; none without a warning."""
    return {WARNING: ascii(warning)[1:-1]} if warning else {}


async def _changes(
    api: ApiContext, request: Request, connector: Connector, asked: list[Any] | _Place | None
) -> tuple[Sequence[ConnectorOffset] | None, Sequence[str]]:
    """Returns the offsets that are to be stored, None for those that are to be forgotten, and what people should know of them."""
    if isinstance(asked, _Place):
        await _ended(api, connector)
        return await _moved(api, request, connector, asked)
    return await translated(api, request, connector, None if asked is None else parse(asked, connector.kind))


async def translated(
    api: ApiContext, request: Request, connector: Connector, changes: Sequence[ConnectorOffset] | None
) -> tuple[Sequence[ConnectorOffset] | None, Sequence[str]]:
    """Returns the changes with our positions in the place of Debezium's offsets, and what people should know of them. RestError 400 for
    an offset from which no task could go on."""
    service = api.offsets
    if changes is None or not isinstance(service, TranslatesOffsets):
        return changes, ()
    try:
        found = await off_loop(api, request, lambda: service.from_debezium(connector, changes))
    except CdcError as error:
        raise _bad_item(error) or error from error
    return found.offsets, [f"{note}." for note in found.notes]


async def _moved(
    api: ApiContext, request: Request, connector: Connector, place: _Place
) -> tuple[Sequence[ConnectorOffset], Sequence[str]]:
    """Returns the offsets at another place, and what is missed or comes again. RestError 400 where no task could go on there."""
    service = api.offsets
    if not isinstance(service, MovesOffsets):
        raise e.not_available("Altering offsets by what they mean")
    try:
        found = await off_loop(api, request, lambda: service.moved(connector, place.to, place.task))
    except CdcError as error:
        if error.code != BAD_POSITION:
            raise
        raise e.RestError(400, error.message, error.code, configPath=f"/{TO}", suggestion=error.hint) from error
    return found.offsets, [f"{note}." for note in found.notes]


async def verified(
    api: ApiContext, request: Request, connector: Connector, changes: Sequence[ConnectorOffset] | None
) -> str:
    """RestError 400 for an offset from which no task could start. Returns a warning where nobody could tell: a database that
    is away must not keep a person from preparing what comes next."""
    service = api.offsets
    if changes is None or not isinstance(service, VerifiesOffsets):
        return ""
    try:
        untold = await off_loop(api, request, lambda: service.verify(connector, changes))
    except CdcError as error:
        raise _bad_item(error) or error from error
    return f"The offsets were not checked against the database: {untold}" if untold else ""


async def alter(
    api: ApiContext,
    request: Request,
    connector: Connector,
    barrier: int,
    changes: Sequence[ConnectorOffset] | None,
    *,
    dry_run: bool = False,
) -> bool:
    """RestError 400 that says which item is wrong."""
    try:
        return await off_loop(api, request, lambda: api.offsets.alter(connector, barrier, changes, dry_run=dry_run))
    except CdcError as error:
        if error.code == INTERRUPTED:
            raise _interrupted(error) from error
        raise _bad_item(error) or error from error


def _bad_item(error: CdcError) -> e.RestError | None:
    """Returns the answer that says which item is wrong; None for an error of another kind."""
    part = PARTS.get(error.code)
    if part is None:
        return None
    path = e.pointer("offsets", str(error.where.get("index", 0)), part)
    return e.RestError(400, error.message, error.code, configPath=path, suggestion=error.hint)


def _effect(before: Sequence[ConnectorOffset], changes: Sequence[ConnectorOffset] | None) -> list[dict[str, Any]]:
    """Returns each partition that would be changed, with its offset before and after."""
    if changes is None:
        changes = [ConnectorOffset(item.partition, None) for item in before]
    known = {json.dumps(dict(item.partition), sort_keys=True): item.offset for item in before}
    return [
        {
            "partition": dict(item.partition),
            "from": known.get(json.dumps(dict(item.partition), sort_keys=True)),
            "to": item.offset,
        }
        for item in changes
    ]


async def stopped(api: ApiContext, connector: Connector, timeout_s: float | None = None) -> int:
    """Returns the task epoch of the empty set that the leader makes for a stopped connector, once fences to be set are set.
    RestError 409 where that is not so within the time, by default that of reads."""

    def standing() -> int | None:
        state = api.view().state
        planned, fenced = connect_json.task_set(api.view(), connector), state.fenced.get(connector.name)
        has_set = planned is not None and not planned.tasks and not planned.error
        return planned.task_epoch if planned and has_set and not (fenced and fenced.pending) else None

    if connector.target_state != "STOPPED":
        message = (
            "Connectors must be in the STOPPED state before their offsets can be modified. This can be done for the "
            f"specified connector by issuing a 'PUT' request to the '/connectors/{connector.name}/stop' endpoint"
        )
        raise e.RestError(400, message, e.NOT_STOPPED)
    await api.until(lambda: standing() is not None, timeout_s)
    barrier = standing()
    if barrier is None:
        raise _still_stopping()
    return barrier


async def _ended(api: ApiContext, connector: Connector) -> None:
    """Waits until no worker has a task of a stopped connector: one that is still to be stopped stores further positions, which only
    a change of offsets fences. RestError 409 where that is not so within the time of reads."""

    def has_ended() -> bool:
        assignments = api.view().state.assignments.values()
        return not any(task.connector == connector.name for one in assignments for task in (*one.tasks, *one.revoke))

    await api.until(has_ended)
    if not has_ended():
        raise _still_stopping()
    # A task that ended with an error, or whose worker is lost, is fenced from now on.
    await stopped(api, connector)


def _still_stopping() -> e.RestError:
    headers = {"Retry-After": str(e.RETRY_AFTER_S), "X-CDC-Reason": "tasks"}
    return e.RestError(409, "The connector's tasks are still being stopped", e.CONFLICT, headers=headers)


def _interrupted(error: CdcError) -> e.RestError:
    headers = {"Retry-After": str(e.RETRY_AFTER_S), "X-CDC-Reason": "epoch"}
    return e.RestError(
        409, f"{e.CONFLICTING_OPERATION}: {error.message}", error.code, headers=headers, suggestion=error.hint
    )


async def off_loop(api: ApiContext, request: Request, call: Callable[[], T]) -> T:
    """Kafka, sources and targets are asked off the loop, a few at a time, and of each user fewer still.

    Where nobody has to say who asks, there are no others for whom to leave some.
    """
    caller = caller_of(request.scope)
    who = caller.share if caller.by else ""
    try:
        return await api.offset_calls.run(call, wait_s=WAIT_S, caller=who, own_wait_s=OWN_WAIT_S)
    except AllBusy:
        headers = {"Retry-After": str(e.RETRY_AFTER_S)}
        raise e.RestError(503, "Too many requests for offsets at this moment", e.TOO_MANY, headers=headers) from None


# -- bodies -----------------------------------------------------------------------------------------------------------


def _items(body: Any) -> list[Any]:
    if not isinstance(body, dict):
        raise e.bad_request("The body must be a JSON object", "")
    unknown = next((name for name in body if name != "offsets"), None)
    if unknown is not None:
        raise e.bad_request(f"Unknown member {unknown!r}: only offsets exists", e.pointer(unknown))
    items = body.get("offsets")
    if items is None or items == []:
        raise e.bad_request(EMPTY, "/offsets")
    if not isinstance(items, list):
        raise e.bad_request("`offsets` must be a list", "/offsets")
    for number, item in enumerate(items):
        check_item(item, str(number))
    return items


def check_item(item: Any, number: str) -> None:
    if not isinstance(item, dict):
        raise e.bad_request("An offset must be an object with partition and offset", e.pointer("offsets", number))
    unknown = next((name for name in item if name not in ("partition", "offset")), None)
    if unknown is not None:
        place = e.pointer("offsets", number, unknown)
        raise e.bad_request(f"Unknown member {unknown!r}: partition and offset exist", place)
    for member in ("partition", "offset"):
        if not isinstance(item.get(member), dict | None):
            raise e.bad_request(f"`{member}` must be an object or null", e.pointer("offsets", number, member))


def parse(items: Sequence[Mapping[str, Any]], kind: str) -> list[ConnectorOffset]:
    """The last word on a partition counts, as in Connect."""
    out: dict[str, ConnectorOffset] = {}
    for number, item in enumerate(items):
        partition, offset = item.get("partition"), item.get("offset")
        if kind == "sink":
            found = _sink_item(partition, offset, str(number))
        elif partition is None:
            raise e.bad_request("The partition cannot be null or missing", e.pointer("offsets", str(number)))
        else:
            found = ConnectorOffset(partition, offset)
        out[json.dumps(found.partition, sort_keys=True)] = found
    return list(out.values())


def _sink_item(partition: Mapping[str, Any] | None, offset: Mapping[str, Any] | None, at: str) -> ConnectorOffset:
    place = e.pointer("offsets", at, "partition")
    if partition is None:
        raise e.bad_request("The partition for a sink connector offset cannot be null or missing", place)
    if TOPIC not in partition or PARTITION not in partition:
        text = f"The partition for a sink connector offset must contain the keys '{TOPIC}' and '{PARTITION}'"
        raise e.bad_request(text, place)
    topic, number = partition[TOPIC], partition[PARTITION]
    if not isinstance(topic, str):
        raise e.bad_request("Kafka topic names must be valid strings and may not be null", f"{place}/{TOPIC}")
    if number is None:
        raise e.bad_request("Kafka partitions must be valid numbers and may not be null", f"{place}/{PARTITION}")
    parsed = {TOPIC: topic, PARTITION: _number(number, INT_MAX, "Kafka partition", f"{place}/{PARTITION}")}
    if offset is None:
        return ConnectorOffset(parsed, None)
    place = e.pointer("offsets", at, "offset")
    if OFFSET not in offset:
        text = f"The offset for a sink connector should either be null or contain the key '{OFFSET}'"
        raise e.bad_request(text, place)
    return ConnectorOffset(parsed, {OFFSET: _number(offset[OFFSET], LONG_MAX, "Kafka offset", f"{place}/{OFFSET}")})


def _number(value: Any, most: int, what: str, place: str) -> int:
    """Numbers as text are numbers, as in Connect; negative ones name nothing."""
    text = str(value) if isinstance(value, int | str) and not isinstance(value, bool) else ""
    if not NUMBER.fullmatch(text) or abs(int(text)) > most:
        noun = what.split()[1].capitalize()
        shown = text if isinstance(value, int | str) else json.dumps(value)
        message = f"Failed to parse the following {what} value in the provided offsets: '{shown[:100]}'. "
        raise e.bad_request(f"{message}{noun} values for sink connectors need to be integers.", place)
    if int(text) < 0:
        raise e.bad_request(f"{what}s cannot be negative", place)
    return int(text)


ENDPOINTS = (
    Endpoint("GET", PATH, get_offsets, "Offsets of a connector", "offsets", (200, 400, 404, 409), (FORM,), role="read"),
    Endpoint(
        "PATCH",
        PATH,
        alter_offsets,
        "Alter offsets",
        "offsets",
        (200, 400, 404, 409),
        DRY,
        "AlterOffsets",
        role="admin",
    ),
    Endpoint("DELETE", PATH, reset_offsets, "Reset offsets", "offsets", (200, 400, 404, 409), DRY, role="admin"),
)
