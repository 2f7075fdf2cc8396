"""Takes a member out of the consumer group on its behalf (LeaveGroup, KIP-345), which librdkafka offers no call for."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Mapping
from typing import Final

from cdcworker.coordinator.kafka import errors as e
from cdcworker.coordinator.kafka.broker_connection import BrokerConnection, BrokerLogin, broker_login, check, text
from cdcworker.schemas.errors import CdcError
from confluent_kafka import KafkaError

REQUEST_S: Final = 3.0
"""The time limit of each step of a connection; a broker that is down must not take the time of the next one."""
_FIND_COORDINATOR: Final = (10, 1)
_LEAVE_GROUP: Final = (13, 3)
"""Request and version, without tagged fields: brokers from 2.4 on take them."""
_GROUP: Final = b"\0"


def remove_member(properties: Mapping[str, str], *, group_id: str, member_id: str, client_id: str) -> None:
    """Takes this member out of the group; nothing happens if it is no member any more.

    Raises CdcError: `kafka.unsupported` when the worker's login or TLS properties cannot be used, `kafka.unreachable`
    when no broker answers, or what the brokers answered.
    """
    login = broker_login(properties, client_id=client_id)
    try:
        coordinator = _coordinator(login, group_id)
        with contextlib.closing(BrokerConnection(login, coordinator, REQUEST_S)) as connection:
            _leave(connection, group_id, member_id)
    except (OSError, struct.error, ValueError) as exc:
        raise CdcError(e.UNREACHABLE, f"take a member out of the group: {type(exc).__name__}") from exc


def _coordinator(login: BrokerLogin, group_id: str) -> tuple[str, int]:
    """Returns the address of the group's coordinator, by the first broker that answers."""
    failure: Exception = OSError("no broker")
    for server in login.servers:
        try:
            with contextlib.closing(BrokerConnection(login, server, REQUEST_S)) as connection:
                answer = connection.ask(_FIND_COORDINATOR, text(group_id) + _GROUP)
        except (OSError, struct.error, ValueError) as exc:
            failure = exc
            continue
        answer.number("i")  # for how long the broker holds back
        check(answer.number("h"), "find the group's coordinator")
        answer.text()
        answer.number("i")
        return answer.text(), answer.number("i")
    raise failure


def _leave(connection: BrokerConnection, group_id: str, member_id: str) -> None:
    member = struct.pack(">i", 1) + text(member_id) + text(None)
    answer = connection.ask(_LEAVE_GROUP, text(group_id) + member)
    answer.number("i")
    check(answer.number("h"), "take a member out of the group", passing=_is_no_member)
    for _ in range(answer.number("i")):
        answer.text()
        answer.text()
        check(answer.number("h"), "take a member out of the group", passing=_is_no_member)


def _is_no_member(code: int) -> bool:
    return bool(code == KafkaError.UNKNOWN_MEMBER_ID)
