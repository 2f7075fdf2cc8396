"""Consistency of requests: workers that know the cluster's state, the leader epoch of forwarded requests, and reads
that have to see a certain write."""

from __future__ import annotations

from collections.abc import Mapping

from cdcworker.coordinator.model import View
from cdcworker.worker.http import errors as e
from cdcworker.worker.rest.context import ApiContext
from cdcworker.worker.rest.forward import EPOCH_HEADER
from starlette.requests import Request
from starlette.responses import Response

STALE_EPOCH = "stale-epoch"
MIN_VERSION = "min_version"
NUMBER_DIGITS_MAX = 18
NUMBERS_MAX: Mapping[str, int] = {"limit": 10**9, MIN_VERSION: 10**15 - 1}
"""The largest value of each query parameter that is a number."""


def number(text: str | None) -> int | None:
    """Returns the number that a text holds in plain digits, None for any other text."""
    is_number = text is not None and text.isascii() and text.isdigit() and len(text) <= NUMBER_DIGITS_MAX
    return int(text) if is_number and text is not None else None


def check_numbers(request: Request) -> None:
    """RestError 400 for a number in the query that is above its maximum, on any endpoint that takes it."""
    for name, largest in NUMBERS_MAX.items():
        for text in request.query_params.getlist(name):
            if text.isascii() and text.isdigit() and int(text[: NUMBER_DIGITS_MAX + 1]) > largest:
                raise e.bad_request(f"{name} must be {largest} at most", e.parameter(name))


def leader_epoch(api: ApiContext) -> int:
    """Returns the epoch of the leader that this worker knows, 0 for none."""
    leader = api.view().state.leader
    return leader.epoch if leader is not None else 0


async def check_ready(api: ApiContext, *, reads: bool) -> None:
    """Waits a little until this worker can tell what the cluster holds; whoever cannot must not deny anything.

    RestError 503 while it has not read the cluster's logs. Logs that tell neither of a leader nor of a connector may be
    those of a cluster that begins: a read is refused with 503 then as well, and a change with Kafka Connect's 409.
    """
    await api.until(lambda: _knows_cluster(api.view()), api.limits.leader_wait_s)
    view = api.view()
    if not view.has_read_logs:
        raise e.starting()
    if not _knows_cluster(view):
        error = e.no_leader()
        raise e.RestError(503, error.message, error.code, headers=error.headers) if reads else error


def _knows_cluster(view: View) -> bool:
    """Returns whether the worker can answer from its view. An election does not keep it from that."""
    return view.has_read_logs and (view.state.leader is not None or bool(view.state.connectors))


async def check_epoch(api: ApiContext, request: Request) -> None:
    """Compares the leader epoch that the sender of a forwarded request knew with this worker's.

    A lower epoch: the sender's view is stale; it is refused with the newer epoch and its leader, and nothing is done. A
    higher epoch: this worker's view is stale and it may no longer lead, so it reads the log on before it answers.
    """
    theirs = number(request.headers.get(EPOCH_HEADER))
    if theirs is None:
        return
    await api.until(lambda: leader_epoch(api) >= theirs)
    mine, leader = leader_epoch(api), api.view().state.leader
    if theirs > mine:
        raise e.no_leader(f"Epoch {theirs} has a leader; this worker knows epoch {mine} and has still to read on.")
    if theirs < mine:
        error = e.no_leader(f"The leader of epoch {theirs} was followed by the leader of epoch {mine}.")
        error.headers |= {
            "X-CDC-Reason": STALE_EPOCH,
            "X-CDC-Leader-Epoch": str(mine),
            "X-CDC-Leader-Url": leader.url if leader else "",
        }
        raise error


def newer_epoch(answer: Response) -> int | None:
    """Returns the newer epoch that a refusal for a stale epoch names, None for any other answer."""
    is_stale = answer.status_code == 409 and answer.headers.get("x-cdc-reason") == STALE_EPOCH
    return number(answer.headers.get(EPOCH_HEADER)) if is_stale else None


async def check_version(api: ApiContext, request: Request) -> None:
    """Makes a read with `?min_version=` wait until this worker has read the config log up to that version.

    A write names its version in `X-CDC-Version`. RestError 503 when the worker has not read that far in time.
    """
    text = request.query_params.get(MIN_VERSION)
    if text is None:
        return
    version = number(text)
    if version is None:
        raise e.bad_request(f"{MIN_VERSION} must be a number", e.parameter(MIN_VERSION))
    await api.caught_up(version)
    known = api.view().state.version
    if known < version:
        headers = {"Retry-After": str(e.RETRY_AFTER_S), "X-CDC-Version": str(known)}
        message = f"This worker has read the log up to version {known}, not yet up to {version}."
        raise e.RestError(503, message, e.NOT_CAUGHT_UP, headers=headers)
