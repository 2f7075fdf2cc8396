"""What an error of RabbitMQ or of its client means: not now, never this record, or never anything."""

from __future__ import annotations

from typing import Final

from amqp import exceptions
from cdcworker.connectors.api.record_target import TargetUnavailable
from cdcworker.connectors.network.sockets import name_of
from cdcworker.connectors.record_sink.errors import RECORD_REFUSED, TARGET_REFUSES, TARGET_UNAVAILABLE
from cdcworker.connectors.targets.rabbitmq.topology import Topology, different, missing
from cdcworker.schemas.errors import CdcError

PUBLISH: Final = (60, 40)
"""The method by which messages are published, as errors name it."""


def login_error(found: BaseException) -> CdcError:
    """Returns the error that a target raises where no connection could be opened."""
    if isinstance(found, exceptions.AccessRefused):
        return CdcError(
            TARGET_REFUSES,
            "RabbitMQ refuses the login",
            where={"key": "rabbitmq.username"},
            hint="Correct rabbitmq.username and rabbitmq.password. The user guest may log in from the server's own machine only.",
        )
    if isinstance(found, exceptions.NotAllowed):
        return CdcError(
            TARGET_REFUSES,
            "RabbitMQ does not let the user into the virtual host",
            where={"key": "rabbitmq.virtual.host"},
            hint="Correct rabbitmq.virtual.host, or give the user permissions there (rabbitmqctl set_permissions).",
        )
    if isinstance(found, exceptions.ConnectionError) and "mechanism" in str(found):
        return CdcError(
            TARGET_REFUSES,
            "RabbitMQ does not offer the mechanism of the login",
            where={"key": "rabbitmq.auth.mechanism"},
        )
    return error_of(found, None)


def error_of(found: BaseException, topology: Topology | None) -> CdcError:
    """Returns the error that a target raises. The server's text may hold a routing key, and with it values: it is not told."""
    if isinstance(found, CdcError):
        return found
    if topology is not None and isinstance(found, exceptions.AMQPError) and (told := _of_channel(found, topology)):
        return told
    code = getattr(found, "reply_code", None)
    what = (
        f"{type(found).__name__} {code}" if code else name_of(found) if isinstance(found, Exception) else "broken off"
    )
    return TargetUnavailable(TARGET_UNAVAILABLE, f"RabbitMQ does not answer ({what})")


def _of_channel(found: exceptions.AMQPError, topology: Topology) -> CdcError | None:
    """Returns what it means that the server has closed the channel, or the connection for what was asked of it."""
    is_publish = found.method_sig == PUBLISH
    depends = is_publish and not topology.exchange
    if isinstance(found, exceptions.NotFound):
        # Where the record says which exchange it is, the others may go on.
        return (
            CdcError(RECORD_REFUSED, "the record names an exchange that is not there") if depends else missing(topology)
        )
    if isinstance(found, exceptions.AccessRefused):
        right = "write to the exchange" if is_publish else "configure, write or read what rabbitmq.declare=create makes"
        return CdcError(
            TARGET_REFUSES,
            "RabbitMQ does not let the user do this (403)",
            where={"key": "rabbitmq.username"},
            hint=f"Give the user the right to {right} (rabbitmqctl set_permissions).",
        )
    if isinstance(found, exceptions.ContentTooLarge) or (
        is_publish and isinstance(found, exceptions.PreconditionFailed)
    ):
        return CdcError(
            RECORD_REFUSED, "RabbitMQ refuses the message: it is too large, or a property of it is not allowed"
        )
    if isinstance(found, exceptions.PreconditionFailed):
        return different(topology)
    if isinstance(found, exceptions.ResourceLocked):
        return CdcError(
            TARGET_REFUSES, "a queue belongs to another connection alone (405)", where={"key": "rabbitmq.queues"}
        )
    if isinstance(found, exceptions.AMQPNotImplementedError | exceptions.InvalidCommand | exceptions.NotAllowed):
        text = f"RabbitMQ does not do what the config asks for ({found.reply_code})"
        return CdcError(TARGET_REFUSES, text, where={"key": "rabbitmq.exchange.type"})
    return None
