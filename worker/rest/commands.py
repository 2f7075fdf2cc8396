"""Commands to the cluster: decided by this worker if it leads, else forwarded to the leader."""

from __future__ import annotations

from collections.abc import Callable, Collection

from cdcworker.coordinator.model import Reply
from cdcworker.coordinator.model import Request as Command
from cdcworker.worker.http import errors as e
from cdcworker.worker.rest.context import ApiContext
from cdcworker.worker.rest.dry_run import is_dry_run, preview
from cdcworker.worker.rest.read_consistency import leader_epoch, newer_epoch
from cdcworker.worker.rest.refusals import kind_of, refusal, subject
from starlette.requests import Request
from starlette.responses import Response


async def carry_out(
    api: ApiContext,
    request: Request,
    command: Command,
    *,
    missing: str,
    done: Callable[[Reply], Response],
    checked: bool = False,
    accepted: Collection[str] = ("ok",),
) -> Response:
    """Has the leader decide a command and returns the answer; a dry run answers without a write.

    `done` makes the answer from the reply. `checked`: live checks have run here, so that the leader leaves them out.
    `accepted`: outcomes that count as done; RestError for all others, with the text `missing` for not found.
    """
    if is_dry_run(request):
        return await preview(api, command, missing=missing, accepted=accepted)
    reply = await api.ask(command)
    if reply.outcome in accepted:
        response = done(reply)
        response.headers["X-CDC-Version"] = str(api.view().state.version)
        return response
    if reply.outcome == "not_leader":
        return await forward_to_leader(api, request, reply.leader_url, checked=checked, epoch=reply.leader_epoch)
    raise refusal(api, reply, subject(command), missing, kind_of(command))


async def forward_to_leader(
    api: ApiContext, request: Request, leader_url: str, *, checked: bool = False, epoch: int = 0
) -> Response:
    """Returns the leader's answer, and waits until this worker has read the change that the answer tells of.

    A worker that no longer leads names the newer epoch: this worker then reads the log on and asks the new leader, once.
    """
    extra = {"validate": "false"} if checked else {}
    for is_last in (False, True):
        if leader_url.rstrip("/") == api.view().url.rstrip("/"):
            raise e.no_leader()
        known = epoch or leader_epoch(api)
        response = await api.forwarder.forward(request, leader_url, extra, known)
        newer = newer_epoch(response)
        if newer is None or is_last:
            break
        await api.until(lambda newer=newer: leader_epoch(api) >= newer)  # type: ignore[misc]
        leader = api.view().state.leader
        if leader is None or leader.epoch < newer:
            break
        leader_url, epoch = leader.url, leader.epoch
    version = response.headers.get("X-CDC-Version", "")
    if version.isdigit():
        await api.caught_up(int(version))
    return response
