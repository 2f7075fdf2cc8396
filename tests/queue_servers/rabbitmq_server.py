"""A real server of RabbitMQ, whose programs `make servers` unpacks from `locks/rabbitmq.json`."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from typing import Any

import amqp
from cdcworker.worker.devstack.ports import HOST
from cdcworker.worker.devstack.rabbitmq import NODE, USER, EmbeddedRabbitMq

ANSWER_S = 20.0


class RabbitMqServer(EmbeddedRabbitMq):
    """A server, and what it holds."""

    def config(self, queue: str, **more: str) -> dict[str, str]:
        """Returns the config of a sink into a queue that it makes, behind an exchange of the same name."""
        return {
            "connector.class": "rabbitmq",
            "rabbitmq.addresses": f"{HOST}:{self.port}",
            "rabbitmq.username": USER,
            "rabbitmq.password": self.password,
            "rabbitmq.declare": "create",
            "rabbitmq.exchange": queue,
            "rabbitmq.queues": f"{queue}=#",
            "rabbitmq.queue.type": "classic",
            **{f"rabbitmq.{name.replace('_', '.')}": value for name, value in more.items()},
        }

    @contextlib.contextmanager
    def channel(self, **login: Any) -> Iterator[Any]:
        """A channel of a client of its own."""
        with amqp.Connection(
            f"{HOST}:{self.port}",
            **{"userid": USER, "password": self.password, "connect_timeout": ANSWER_S, **login},
        ) as connection:
            yield connection.channel()

    def count(self, queue: str) -> int:
        """Returns how many messages a queue has ready; 0 where it is not there."""
        try:
            with self.channel() as channel:
                return int(channel.queue_declare(queue, passive=True).message_count)
        except amqp.exceptions.NotFound:
            return 0

    def taken(self, queue: str) -> list[Any]:
        """Takes the messages that a queue has ready out of it, and returns them."""
        found: list[Any] = []
        with contextlib.suppress(amqp.exceptions.NotFound), self.channel() as channel:
            count = channel.queue_declare(queue, passive=True).message_count
            if count:
                channel.basic_consume(queue, callback=found.append)
                while len(found) < count:
                    channel.connection.drain_events(timeout=ANSWER_S)
                channel.basic_ack(found[count - 1].delivery_tag, multiple=True)
                del found[count:]
        return found

    def run(self, expression: str) -> str:
        """Has the server run an expression of Erlang; returns what it is."""
        program = self._programs.erlang / "bin" / "erl_call"
        cookie = (self._directory / ".erlang.cookie").read_text()
        found = subprocess.run(
            [str(program), "-sname", NODE, "-c", cookie, "-e"],
            input=f"{expression}.\n",
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=ANSWER_S,
            check=True,
        )
        return found.stdout.removeprefix("{ok, ").removesuffix("}")

    def cut(self) -> None:
        """Has the server end every connection."""
        self.run('[rabbit_networking:close_connection(Each, "cut") || Each <- rabbit_networking:connections()]')

    def alarm(self, *, on: bool) -> None:
        """Has the server believe that its memory is short, or no longer so."""
        place = "{resource_limit, memory, node()}"
        self.run(f"rabbit_alarm:set_alarm({{{place}, []}})" if on else f"rabbit_alarm:clear_alarm({place})")

    def make(self, exchange: str, queue: str, keys: str = "#", **arguments: Any) -> None:
        """Makes an exchange of type topic, and a queue that is bound to it."""
        with self.channel() as channel:
            channel.exchange_declare(exchange, "topic", durable=True, auto_delete=False)
            named = {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()}
            channel.queue_declare(queue, durable=True, auto_delete=False, arguments=named)
            channel.queue_bind(queue, exchange, keys)

    def add_user(self, name: str, password: str, configure: str, write: str, read: str) -> None:
        texts = ", ".join(f'<<"{text}">>' for text in (name, "/", configure, write, read, "tests"))
        self.run(f'rabbit_auth_backend_internal:add_user(<<"{name}">>, <<"{password}">>, <<"tests">>)')
        self.run(f"rabbit_auth_backend_internal:set_permissions({texts})")
