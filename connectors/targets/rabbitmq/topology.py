"""What has to be on the server before a message is published: an exchange, and queues that are bound to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cdcworker.connectors.record_sink.errors import TARGET_REFUSES
from cdcworker.connectors.targets import templates
from cdcworker.schemas.errors import CdcError

CREATE, CHECK, NONE = "create", "check", "none"
DECLARES: Final = (CREATE, CHECK, NONE)
QUEUE_TYPES: Final = ("classic", "quorum", "stream")
RESERVED: Final = "amq."
"""What the names of the server's own exchanges begin with: they are there, and cannot be made."""


@dataclass(frozen=True, slots=True)
class Binding:
    """A queue that gets what an exchange has under a key. `key` None: it is not bound."""

    queue: str
    key: str | None


@dataclass(frozen=True, slots=True)
class Topology:
    """What a config says of the exchange and its queues. `exchange` empty: the default exchange, or one whose name depends on the
    record."""

    exchange: str
    exchange_type: str
    bindings: Sequence[Binding]
    arguments: Mapping[str, Any]
    declares: str


def topology_of(config: Mapping[str, Any]) -> Topology:
    """Returns what a parsed config says."""
    named = config["rabbitmq.exchange"]
    exchange = "" if templates.has_places(named) else named
    return Topology(
        exchange,
        config["rabbitmq.exchange.type"],
        [binding_of(text, is_bound=bool(exchange)) for text in config["rabbitmq.queues"]],
        {"x-queue-type": config["rabbitmq.queue.type"], **arguments_of(config["rabbitmq.queue.arguments"])},
        config["rabbitmq.declare"],
    )


def binding_of(text: str, *, is_bound: bool) -> Binding:
    """Returns what `QUEUE=KEY` says; a queue without a key is bound with an empty one, as for an exchange of type fanout."""
    queue, equals, key = text.partition("=")
    return Binding(queue.strip(), key.strip() if equals or is_bound else None)


def arguments_of(items: Sequence[str]) -> dict[str, Any]:
    """Returns the arguments of queues: `NAME=VALUE`, where numbers and `true` and `false` are such."""
    found: dict[str, Any] = {}
    for item in items:
        name, _, text = item.partition("=")
        value = text.strip()
        if value in ("true", "false"):
            found[name.strip()] = value == "true"
        else:
            found[name.strip()] = int(value) if value.isascii() and value.isdecimal() else value
    return found


def settle(channel: Any, topology: Topology, *, create: bool) -> None:
    """Looks whether everything is there, or makes it. Errors of the client's library, which close the channel; CdcError."""
    if topology.declares == NONE:
        return
    makes = create and topology.declares == CREATE
    if topology.exchange:
        is_own = topology.exchange.startswith(RESERVED)
        channel.exchange_declare(
            topology.exchange, topology.exchange_type, passive=is_own or not makes, durable=True, auto_delete=False
        )
    for binding in topology.bindings:
        channel.queue_declare(
            binding.queue,
            passive=not makes,
            durable=True,
            auto_delete=False,
            arguments=dict(topology.arguments) if makes else None,
        )
        if makes and binding.key is not None:
            channel.queue_bind(binding.queue, topology.exchange, binding.key)


def missing(topology: Topology) -> CdcError:
    """Returns the error for an exchange or a queue that is not there."""
    names = ", ".join(dict.fromkeys(filter(None, (topology.exchange, *(each.queue for each in topology.bindings)))))
    return CdcError(
        TARGET_REFUSES,
        f"an exchange or a queue is not there ({names or 'its name depends on the record'})",
        where={"key": "rabbitmq.exchange"},
        hint="Make it, or set rabbitmq.declare=create and give the user the right to configure it.",
    )


def different(topology: Topology) -> CdcError:
    """Returns the error for an exchange or a queue that is there with other settings."""
    return CdcError(
        TARGET_REFUSES,
        "an exchange or a queue is there with another type or other arguments than the config says",
        where={"key": "rabbitmq.declare"},
        hint=f"Set rabbitmq.exchange.type, rabbitmq.queue.type and rabbitmq.queue.arguments as they are there, or rabbitmq.declare={CHECK}.",
    )
