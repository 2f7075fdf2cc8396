"""A real server of NATS with JetStream, which `make servers` builds from `locks/nats`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import nats
from cdcworker.worker.devstack.nats import USER, EmbeddedNats
from cdcworker.worker.devstack.ports import HOST


class NatsServer(EmbeddedNats):
    """A server, and what it holds. With `syncs` its data are on disk once it has answered."""

    def __init__(self, program: Path, directory: Path, rights: str = "", *, syncs: bool = True) -> None:
        super().__init__(program, directory, rights=rights, syncs=syncs)

    def config(self, place: str, **more: str) -> dict[str, str]:
        """Returns the config of a sink into a stream whose subjects begin with its name."""
        return {
            "connector.class": "nats",
            "nats.servers": f"nats://{HOST}:{self.port}",
            "nats.username": USER,
            "nats.password": self.password,
            "nats.stream": place,
            "nats.subject.template": f"{place}.${{topic}}",
            **{f"nats.{name.replace('_', '.')}": value for name, value in more.items()},
        }

    def call(self, work: Callable[[Any], Awaitable[Any]]) -> Any:
        """Returns what some work with a client makes."""

        async def called() -> Any:
            client = await nats.connect(
                f"nats://{HOST}:{self.port}", user=USER, password=self.password, allow_reconnect=False
            )
            try:
                return await work(client)
            finally:
                await client.close()

        return asyncio.run(called())

    def count(self, stream: str) -> int:
        """Returns how many messages a stream has; 0 where it is not there."""

        async def counted(client: Any) -> int:
            try:
                return int((await client.jetstream().stream_info(stream)).state.messages)
            except nats.js.errors.NotFoundError:
                return 0

        return int(self.call(counted))

    def messages(self, stream: str, after: int = 0) -> list[Any]:
        """Returns the messages of a stream behind a sequence number."""

        async def read(client: Any) -> list[Any]:
            found: list[Any] = []
            jetstream = client.jetstream()
            try:
                last = (await jetstream.stream_info(stream)).state.last_seq
            except nats.js.errors.NotFoundError:
                return found
            if last <= after:
                return found
            config = nats.js.api.ConsumerConfig(
                deliver_policy=nats.js.api.DeliverPolicy.BY_START_SEQUENCE, opt_start_seq=after + 1
            )
            reader = await jetstream.subscribe(stream=stream, subject=">", config=config, ordered_consumer=True)
            while not found or found[-1].metadata.sequence.stream < last:
                found.append(await reader.next_msg(5.0))
            return found

        return list(self.call(read))
