"""Packets: payloads of any size, cut into pieces of any size."""

from __future__ import annotations

import pytest
from cdcworker.connectors.mysql.errors import CONNECTION_LOST, EVENT_TOO_LARGE
from cdcworker.connectors.mysql.transport.packets import BUFFER_BYTES, PACKET_BYTES_MAX, PacketBuffer, packets
from cdcworker.schemas.errors import CdcError
from hypothesis import given
from hypothesis import strategies as st


def fed(buffer: PacketBuffer, data: bytes, step: int) -> list[bytes]:
    """The payloads that come out when bytes arrive in pieces."""
    out, at = [], 0
    while at < len(data):
        with buffer.room() as room:
            assert len(room) > 0
            size = min(step, len(room), len(data) - at)
            room[:size] = data[at : at + size]
        buffer.filled(size)
        at += size
        while (payload := buffer.next()) is not None:
            out.append(payload)
    return out


@given(st.lists(st.binary(max_size=50), max_size=20), st.integers(1, 100))
def test_payloads_come_out_as_they_went_in(payloads: list[bytes], step: int) -> None:
    buffer = PacketBuffer()
    data = b"".join(packets(payload, i) for i, payload in enumerate(payloads))
    assert fed(buffer, data, step) == payloads
    assert buffer.is_empty


@pytest.mark.parametrize(
    "size",
    [
        BUFFER_BYTES - 4,
        BUFFER_BYTES,
        PACKET_BYTES_MAX - 1,
        PACKET_BYTES_MAX,
        PACKET_BYTES_MAX + 1,
        2 * PACKET_BYTES_MAX,
    ],
)
def test_a_payload_of_many_packets_is_joined(size: int) -> None:
    payload = bytes(size)
    data = packets(b"small", 254) + packets(payload, 255)
    data += packets(b"after", (256 + size // PACKET_BYTES_MAX) & 255)
    buffer = PacketBuffer()
    assert fed(buffer, data, 700_000) == [b"small", payload, b"after"]
    assert buffer.is_empty


def test_a_payload_that_is_too_large_is_refused_before_it_is_read() -> None:
    for size in (1001, PACKET_BYTES_MAX):
        buffer = PacketBuffer(1000)
        with pytest.raises(CdcError) as caught:
            fed(buffer, size.to_bytes(3, "little") + b"\0", 10)
        assert caught.value.code == EVENT_TOO_LARGE
    assert fed(PacketBuffer(1000), packets(bytes(1000)), 2000) == [bytes(1000)]


def test_packets_that_do_not_follow_each_other_are_refused() -> None:
    with pytest.raises(CdcError) as caught:
        fed(PacketBuffer(), packets(b"a", 0) + packets(b"b", 2), 100)
    assert caught.value.code == CONNECTION_LOST


def test_packets_that_somebody_else_has_taken_are_behind_the_next_one() -> None:
    buffer, data = PacketBuffer(), b"".join(packets(b"payload %d" % i, 255 + i) for i in range(3))
    assert buffer.sequence == -1
    with buffer.room() as room:
        room[: len(data)] = data
    buffer.filled(len(data))
    assert buffer.waiting is not None
    found, at, end = buffer.waiting
    assert bytes(found[at:end]) == data
    buffer.passed(at + len(data) // 3, 255)
    assert buffer.next() == b"payload 1"
    assert (buffer.sequence, buffer.next(), buffer.is_empty) == (0, b"payload 2", True)


def test_nothing_is_there_for_somebody_else_amid_a_payload_of_many_packets() -> None:
    buffer, data = PacketBuffer(), packets(bytes(PACKET_BYTES_MAX + 5))
    assert fed(buffer, data[:-4], 1 << 20) == []
    assert buffer.waiting is None
    assert [len(payload) for payload in fed(buffer, data[-4:], 4)] == [PACKET_BYTES_MAX + 5]
