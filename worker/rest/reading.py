"""Which picture an answer rests on: the leader epoch of forwarded requests, and reads that must see a certain write."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cdcworker.worker.rest import errors as e
from starlette.requests import Request
from starlette.responses import Response

if TYPE_CHECKING:
    from cdcworker.worker.rest.context import Api

EPOCH_HEADER = "x-cdc-leader-epoch"
URL_HEADER = "x-cdc-leader-url"
STALE_EPOCH = "stale-epoch"
MIN_VERSION = "min_version"
NUMBER_DIGITS_MAX = 18


def number(text: str | None) -> int | None:
    """A plain number that fits; None for anything else."""
    is_number = text is not None and text.isascii() and text.isdigit() and len(text) <= NUMBER_DIGITS_MAX
    return int(text) if is_number and text is not None else None


def leader_epoch(api: Api) -> int:
    leader = api.view().state.leader
    return leader.epoch if leader is not None else 0


async def check_epoch(api: Api, request: Request) -> None:
    """A forwarded request names the leader epoch that its sender knew.

    A lower one than here: the sender's picture is old, it is told the newer epoch and its leader, and nothing is done.
    A higher one: this worker's picture is old; it may no longer lead, so it reads on before it answers anything.
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
    """The epoch that a refusal for a stale one names."""
    is_stale = answer.status_code == 409 and answer.headers.get("x-cdc-reason") == STALE_EPOCH
    return number(answer.headers.get(EPOCH_HEADER)) if is_stale else None


async def check_version(api: Api, request: Request) -> None:
    """`?min_version=`: a read waits until this worker has read the log so far, as `X-CDC-Version` of a write told it."""
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
