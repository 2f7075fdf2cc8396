"""Forwards requests to the leader: at most two hops, only the headers that are needed, no redirects."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Mapping
from urllib.parse import parse_qsl, urlencode

import httpx
from cdcworker.worker.http import errors as e
from cdcworker.worker.http.error_members import FORWARD
from cdcworker.worker.http.paths import encode_segment
from cdcworker.worker.security.access import REQUEST_ID, caller_of
from cdcworker.worker.security.audit import ASKED_FROM
from cdcworker.worker.security.signing import BAD_SIGNATURE, SignedRequest, Signer, no_key
from starlette.requests import Request
from starlette.responses import Response

log = logging.getLogger(__name__)

EPOCH_HEADER = "x-cdc-leader-epoch"
"""The leader epoch that the sender of a forwarded request knows."""
SENT_HEADERS = ("if-match", "content-type", "idempotency-key")
"""Headers of the caller that are forwarded: the version the change is meant for, the type of the body, the request's
key. The signature names the caller and covers every header that is sent; the receiver drops all others."""
MADE_HEADERS = (EPOCH_HEADER, "x-request-id", "accept", "user-agent")
"""Headers that the forwarding worker adds; they are signed too."""
KEPT_HEADERS = (
    *("content-type", "location", "etag", "retry-after"),
    *("x-cdc-reason", "x-cdc-version", "x-cdc-warning", "x-cdc-left", EPOCH_HEADER),
)
USER_AGENT = "cdcworker"
CONNECT_TIMEOUT_S = 5.0
ANSWER_TIMEOUT_S = 100.0
"""Longer than the leader's own limit for a request, so that the leader's answer decides."""
KEY_WAIT_S = 2.0
KEY_POLL_S = 0.05
NEXT_HOP = {None: "true", "true": "false"}


class Forwarder:
    """Forwards requests to other workers. It signs each with the session key, as Kafka Connect's internal requests."""

    def __init__(
        self,
        signer: Signer | None = None,
        tls: ssl.SSLContext | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """`tls` is the context that checks the certificates of other workers; None: the machine's certificate authorities."""
        self._signer, self._tls, self._transport = signer, tls, transport
        self._client: httpx.AsyncClient | None = None

    async def start(self) -> None:
        """Opens the HTTP client inside the running event loop. Proxies from the environment are not used between
        workers."""
        timeout = httpx.Timeout(ANSWER_TIMEOUT_S, connect=CONNECT_TIMEOUT_S)
        self._client = httpx.AsyncClient(
            transport=self._transport,
            timeout=timeout,
            follow_redirects=False,
            trust_env=False,
            verify=self._tls or True,
        )

    async def stop(self) -> None:
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    async def forward(self, request: Request, leader_url: str, extra: Mapping[str, str], epoch: int = 0) -> Response:
        """Forwards a request and returns the answer. RestError 409 when the leader cannot be reached, 500 when it
        fails.

        `epoch`: the leader epoch that this worker knows; a worker of another epoch must not act on the request.
        """
        hop = request.query_params.get(FORWARD)
        if hop not in NEXT_HOP:
            raise e.RestError(409, e.CONFLICTING_OPERATION, e.NO_LEADER, headers=e.no_leader().headers)
        if not leader_url:
            raise e.no_leader()
        url = _target(request, leader_url, {**extra, FORWARD: NEXT_HOP[hop]})
        assert self._client is not None, "forwarding outside the server's lifespan"
        try:
            answer = await self._send(request, url, leader_url, epoch)
            if answer.status_code == 403 and BAD_SIGNATURE in answer.text:
                answer = await self._send(
                    request, url, leader_url, epoch
                )  # the key changed on the way; nothing was done
        except (httpx.ConnectError, httpx.ConnectTimeout) as exc:
            # Nothing was sent: the caller may repeat safely, which Connect's clients do on 409.
            log.warning("leader unreachable url=%s error=%s", leader_url, exc)
            raise e.no_leader(
                f"Cannot complete request momentarily because the leader at {leader_url} cannot be reached, "
                "likely because a rebalance is underway."
            ) from None
        except (httpx.HTTPError, httpx.InvalidURL) as exc:
            raise _failed(f"{type(exc).__name__} at {leader_url}") from None
        return _relayed(answer, leader_url)

    async def _send(self, request: Request, url: httpx.URL, leader_url: str, epoch: int) -> httpx.Response:
        assert self._client is not None
        body, headers = await request.body(), _headers(request, epoch)
        target = url.raw_path.decode("ascii")
        signed = SignedRequest(request.method, target, body, leader_url, tuple(headers.items()))
        sent = {**headers, **await self._who(request, signed)}
        encoded = {name.encode(): value.encode("latin-1") for name, value in sent.items()}
        return await self._client.request(request.method, url, content=body, headers=encoded)

    async def _who(self, request: Request, signed: SignedRequest) -> dict[str, str]:
        """Returns the signature that names the caller. His own credential is never sent.

        A cluster that has just been started gets its session key soon. RestError 503 if it does not come, for a caller who
        has shown who he is: unsigned, the request would be nobody's.
        """
        caller = caller_of(request.scope)
        address = request.scope.get(ASKED_FROM) or (request.client.host if request.client else "")
        deadline = time.monotonic() + KEY_WAIT_S
        while True:
            headers = self._signer.sign(signed, caller, address) if self._signer else {}
            if headers or not caller.by:
                return headers
            if time.monotonic() >= deadline:
                raise no_key()
            await asyncio.sleep(KEY_POLL_S)


def _target(request: Request, leader_url: str, changes: Mapping[str, str]) -> httpx.URL:
    """Returns the URL at the leader. The path is encoded again, so that names with `;`, `/` or dots arrive as they were
    sent."""
    path = "/" + "/".join(map(encode_segment, request.scope["cdc.segments"]))
    query = [
        (name, value)
        for name, value in parse_qsl(request.scope["query_string"].decode("latin-1"), keep_blank_values=True)
        if name not in changes
    ]
    base = httpx.URL(leader_url)
    raw = base.path.rstrip("/") + path + "?" + urlencode([*query, *changes.items()])
    return base.copy_with(raw_path=raw.encode("ascii"))


def _headers(request: Request, epoch: int) -> dict[str, str]:
    sent = {name: request.headers[name] for name in SENT_HEADERS if name in request.headers}
    known = {EPOCH_HEADER: str(epoch)} if epoch else {}
    if REQUEST_ID in request.scope:
        known["x-request-id"] = request.scope[REQUEST_ID]
    return {**sent, **known, "accept": "application/json", "user-agent": USER_AGENT}


def _relayed(answer: httpx.Response, leader_url: str) -> Response:
    if answer.is_redirect:
        raise _failed(f"{leader_url} answered with a redirect ({answer.status_code})")
    if answer.status_code >= 400 and not _is_error_message(answer):
        raise _failed(f"{leader_url} answered {answer.status_code} without an error message")
    headers = {name: answer.headers[name] for name in KEPT_HEADERS if name in answer.headers}
    return Response(answer.content, answer.status_code, headers=headers)


def _is_error_message(answer: httpx.Response) -> bool:
    try:
        body = answer.json()
    except ValueError:
        return False
    return isinstance(body, dict) and "error_code" in body and "message" in body


def _failed(reason: str) -> e.RestError:
    return e.RestError(500, f"IO Error trying to forward REST request: {reason}", e.FORWARD_FAILED)
