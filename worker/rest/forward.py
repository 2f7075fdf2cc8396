"""Forwarding to the leader: at most two hops, few headers, no redirects."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Mapping
from urllib.parse import parse_qsl, urlencode

import httpx
from cdcworker.worker.rest import errors as e
from cdcworker.worker.rest.reading import EPOCH_HEADER
from cdcworker.worker.rest.routing import encode_segment
from cdcworker.worker.security.access import REQUEST_ID, caller_of
from cdcworker.worker.security.signing import BAD_SIGNATURE, Signed, Signer
from starlette.requests import Request
from starlette.responses import Response

log = logging.getLogger(__name__)

SENT_HEADERS = ("if-match", "content-type", "idempotency-key")
"""The caller's own: on which version, what the body is, which request it is. Who asks is in the signature; everything else stays here."""
KEPT_HEADERS = ("content-type", "location", "etag", "retry-after", "x-cdc-reason", "x-cdc-version", EPOCH_HEADER)
USER_AGENT = "cdcworker"
CONNECT_TIMEOUT_S = 5.0
ANSWER_TIMEOUT_S = 100.0
"""Longer than the leader's own limit for a request, so that its answer decides."""
NEXT_HOP = {None: "true", "true": "false"}


class Forwarder:
    def __init__(self, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self._transport = transport
        self._client: httpx.AsyncClient | None = None
        self.signer: Signer | None = None
        self.tls: ssl.SSLContext | None = None
        """How other workers' certificates are checked."""

    async def start(self) -> None:
        """Opens the client inside the running loop. Proxies of the environment are not for peers."""
        timeout = httpx.Timeout(ANSWER_TIMEOUT_S, connect=CONNECT_TIMEOUT_S)
        self._client = httpx.AsyncClient(
            transport=self._transport,
            timeout=timeout,
            follow_redirects=False,
            trust_env=False,
            verify=self.tls or True,
        )

    async def stop(self) -> None:
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    async def forward(self, request: Request, leader_url: str, extra: Mapping[str, str], epoch: int = 0) -> Response:
        """`epoch`: the leader's, as this worker knows it; a leader of another one must not act on the request."""
        hop = request.query_params.get("forward")
        if hop not in NEXT_HOP:
            raise e.RestError(409, e.CONFLICTING_OPERATION, e.NO_LEADER, headers=e.no_leader().headers)
        if not leader_url:
            raise e.no_leader()
        url = _target(request, leader_url, {**extra, "forward": NEXT_HOP[hop]})
        assert self._client is not None, "forwarding outside the server's lifespan"
        try:
            answer = await self._send(request, url, epoch)
            if answer.status_code == 403 and BAD_SIGNATURE in answer.text:
                answer = await self._send(request, url, epoch)  # the key changed on the way; nothing was done
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

    async def _send(self, request: Request, url: httpx.URL, epoch: int) -> httpx.Response:
        assert self._client is not None
        body = await request.body()
        headers = {**_headers(request, epoch), **self._who(request, url, body)}
        return await self._client.request(request.method, url, content=body, headers=headers)

    def _who(self, request: Request, url: httpx.URL, body: bytes) -> dict[str, str]:
        """Signed by this worker, which knows the caller; before there is a key the caller's own credential."""
        target = url.raw_path.decode("ascii")
        signed = self.signer.sign(Signed(request.method, target, body), caller_of(request.scope)) if self.signer else {}
        if signed:
            return signed
        own = request.headers.get("authorization")
        return {"authorization": own} if own else {}


def _target(request: Request, leader_url: str, changes: Mapping[str, str]) -> httpx.URL:
    """The same path, encoded afresh: names with `;`, `/` or dots arrive as they were meant."""
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
    kept = {name: answer.headers[name] for name in KEPT_HEADERS if name in answer.headers}
    return Response(answer.content, answer.status_code, headers=kept)


def _is_error_message(answer: httpx.Response) -> bool:
    try:
        body = answer.json()
    except ValueError:
        return False
    return isinstance(body, dict) and "error_code" in body and "message" in body


def _failed(reason: str) -> e.RestError:
    return e.RestError(500, f"IO Error trying to forward REST request: {reason}", e.FORWARD_FAILED)
