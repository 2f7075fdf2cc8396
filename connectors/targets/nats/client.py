"""A connection to NATS, to an address that was judged. Its event loop runs in the caller's thread, and only while something is asked."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Final

from cdcworker.connectors.api.record_target import TargetUnavailable
from cdcworker.connectors.config import tls_policy
from cdcworker.connectors.config.allowed_hosts import UnknownHost, addresses
from cdcworker.connectors.config.tls_policy import PLAIN, VERIFIED
from cdcworker.connectors.network.tls import secret_file, tls_context
from cdcworker.connectors.record_sink.errors import TARGET_REFUSES, TARGET_UNAVAILABLE
from cdcworker.connectors.targets.nats.acknowledgements import Acknowledgements, Message, NobodyTakesIt
from cdcworker.connectors.targets.nats.config import NatsAddress, is_secure, places_of, subjects_of, takes
from cdcworker.connectors.targets.nats.replies import error_of
from cdcworker.schemas.errors import CdcError
from nats import errors
from nats.aio.client import Client
from nats.js import api
from nats.js.errors import KeyWrongLastSequenceError, NotFoundError

PLACE_KEY: Final = "nats.servers"
CLOSE_S: Final = 1.0
IDLE_S: Final = 60.0
"""A connection that was idle for so long is made anew: nobody has answered the server's pings meanwhile, which are two minutes apart."""


class NatsClient:
    """Publishes messages and waits for their acknowledgements. One thread uses it, but for `cancel`."""

    def __init__(self, config: Mapping[str, Any], state_dir: str) -> None:
        self._config, self._state_dir = config, state_dir
        self._places = places_of(config)
        hosts = [place.host for place in self._places]
        tls_policy.check("nats.ssl.enabled", "false", VERIFIED if is_secure(config) else PLAIN, hosts)
        self._tls = tls_context(config, "nats.ssl.", state_dir, TARGET_REFUSES) if is_secure(config) else None
        self._loop = asyncio.new_event_loop()
        self._used_at = time.monotonic()
        self._client: Client | None = None
        self._acknowledgements: Acknowledgements | None = None
        self._lost: asyncio.Event | None = None
        self._refusal: CdcError | None = None
        self._running: asyncio.Task[Any] | None = None

    def publish(self, messages: Sequence[Message]) -> list[CdcError]:
        """Returns what is wrong with single messages once each is acknowledged or refused. CdcError where that is not known."""
        found: list[CdcError] = self._run(self._published(messages))
        return found

    def put(self, bucket: str, entries: Mapping[str, bytes]) -> None:
        """Writes entries of a bucket of keys and values that are not there yet."""
        self._run(self._put(bucket, entries))

    def stream(self, *, create: bool) -> api.StreamConfig:
        """Returns the settings of the stream, which is made only if that is asked for and the config says so. CdcError."""
        found: api.StreamConfig = self._run(self._stream(create=create))
        return found

    @property
    def max_body_bytes(self) -> int:
        """The most bytes of a message, with its headers, that the server takes; 0: it is not known."""
        return self._client.max_payload if self._client is not None else 0

    def cancel(self) -> None:
        """Breaks off what runs, from any thread."""
        task = self._running
        if task is not None:
            self._loop.call_soon_threadsafe(task.cancel)

    def close(self) -> None:
        if not self._loop.is_closed():
            with contextlib.suppress(CdcError):
                self._run(self._ended())
            self._loop.close()

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        try:
            return self._loop.run_until_complete(self._watched(work))
        except UnknownHost:
            raise TargetUnavailable(TARGET_UNAVAILABLE, f"a host of {PLACE_KEY} leads to no address") from None
        except (errors.Error, OSError, asyncio.CancelledError, TimeoutError) as exc:
            # A request that the user may not make is never answered; the server tells it apart.
            raise self._refusal or error_of(exc) from None

    async def _watched(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Awaits work until it is done, cancelled or late. After a failure the connection is made anew."""
        self._running = asyncio.current_task()
        try:
            async with asyncio.timeout(self._config["nats.request.timeout.ms"] / 1000):
                return await work
        except BaseException:
            with contextlib.suppress(Exception):
                await self._close()
            raise
        finally:
            self._running = None

    async def _published(self, messages: Sequence[Message]) -> list[CdcError]:
        await self._connected()
        assert self._lost is not None
        assert self._acknowledgements is not None
        sent = asyncio.ensure_future(self._acknowledgements.publish(messages))
        lost = asyncio.ensure_future(self._lost.wait())
        try:
            await asyncio.wait((sent, lost), return_when=asyncio.FIRST_COMPLETED)
            if not sent.done():
                raise self._refusal or TargetUnavailable(TARGET_UNAVAILABLE, "the connection was cut")
            found = sent.result()
        finally:
            sent.cancel()
            lost.cancel()
        if any(isinstance(one, NobodyTakesIt) for one in found):
            await self._judge_subjects(messages)
        if worst := next((one for one in found if one.kind != "data"), None):
            raise worst
        return found

    async def _judge_subjects(self, messages: Sequence[Message]) -> None:
        """CdcError where the stream is there and does not take a message's subject: that does not pass."""
        taken = (await self._stream(create=False)).subjects or []
        if not all(any(takes(each, message.subject) for each in taken) for message in messages):
            text = (
                f"the stream {self._config['nats.stream']} does not take the subjects that nats.subject.template makes"
            )
            raise CdcError(TARGET_REFUSES, text, where={"key": "nats.subject.template"})

    async def _put(self, bucket: str, entries: Mapping[str, bytes]) -> None:
        stream = (await self._connected()).jetstream()
        try:
            store = await stream.key_value(bucket)
        except NotFoundError:
            store = await stream.create_key_value(
                api.KeyValueConfig(bucket, replicas=self._config["nats.stream.replicas"])
            )
        for key, value in entries.items():
            with contextlib.suppress(KeyWrongLastSequenceError):  # it is there
                await store.create(key, value)

    async def _stream(self, *, create: bool) -> api.StreamConfig:
        stream = (await self._connected()).jetstream()
        config = self._config
        try:
            return (await stream.stream_info(config["nats.stream"])).config
        except NotFoundError:
            if not (create and config["nats.stream.create"]):
                text = f"the stream {config['nats.stream']} is not there"
                raise CdcError(TARGET_REFUSES, text, where={"key": "nats.stream"}) from None
        wanted = api.StreamConfig(
            name=config["nats.stream"],
            subjects=subjects_of(config),
            num_replicas=config["nats.stream.replicas"],
            max_age=config["nats.stream.max.age.ms"] / 1000,
            duplicate_window=config["nats.stream.duplicate.window.ms"] / 1000,
        )
        return (await stream.add_stream(wanted)).config

    async def _connected(self) -> Client:
        is_stale = time.monotonic() - self._used_at > IDLE_S
        self._used_at = time.monotonic()
        if is_stale:
            await self._close()
        if self._client is None or self._client.is_closed:
            self._client = await self._connect()
            self._acknowledgements = Acknowledgements(
                self._client, self._config["nats.stream"], self._config["nats.publish.pending.max"]
            )
            await self._acknowledgements.listen()
        return self._client

    async def _connect(self) -> Client:
        failure: Exception = OSError("no address")
        for place in self._places:
            for address in addresses(place.host, PLACE_KEY):
                try:
                    return await self._connect_to(place, address)
                except ssl.SSLCertVerificationError as exc:
                    text = f"the server's certificate is not trusted: {exc.verify_message}"
                    raise CdcError(TARGET_REFUSES, text) from None
                except (errors.Error, OSError, TimeoutError) as exc:
                    failure = exc
        raise failure

    async def _connect_to(self, place: NatsAddress, address: str) -> Client:
        lost = self._lost = asyncio.Event()
        self._refusal = None

        async def closed() -> None:
            lost.set()

        async def failed(exc: Exception) -> None:
            # The server tells what a user may not do apart from the message, which is never acknowledged.
            if "permissions violation" in str(exc).lower():
                self._refusal = CdcError(TARGET_REFUSES, "NATS does not let the user do this (permissions violation)")
                lost.set()

        host = f"[{address}]" if ":" in address else address
        client = Client()
        try:
            with contextlib.ExitStack() as stack:
                await client.connect(
                    f"{'tls' if self._tls else 'nats'}://{host}:{place.port}",
                    tls=self._tls,
                    tls_hostname=place.host if self._tls else None,
                    # The engine tries again, and knows how often.
                    allow_reconnect=False,
                    max_reconnect_attempts=1,
                    reconnect_time_wait=0,
                    connect_timeout=self._config["nats.connect.timeout.ms"] / 1000,
                    closed_cb=closed,
                    error_cb=failed,
                    name="cdcworker",
                    **self._login(stack),
                )
        except BaseException:
            # The client leaves a connection open that the server refuses.
            await _closed(client)
            raise
        return client

    def _login(self, stack: contextlib.ExitStack) -> dict[str, Any]:
        config = self._config
        if config["nats.username"]:
            return {"user": config["nats.username"], "password": config["nats.password"].reveal().strip()}
        if config["nats.token"]:
            return {"token": config["nats.token"].reveal().strip()}
        if config["nats.nkey.seed"]:
            return {"nkeys_seed_str": config["nats.nkey.seed"].reveal().strip()}
        if config["nats.credentials"]:
            return {
                "user_credentials": stack.enter_context(
                    secret_file(config["nats.credentials"].reveal(), self._state_dir)
                )
            }
        return {}

    async def _ended(self) -> None:
        """Closes the connection and ends what the client still does."""
        await self._close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await _closed(client)


async def _closed(client: Client) -> None:
    """Closes a connection, also one whose server takes nothing more."""
    with contextlib.suppress(Exception):
        async with asyncio.timeout(CLOSE_S):
            await client.close()
