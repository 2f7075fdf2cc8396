"""A process of another user on the machine talks to the ports of a driver that runs its tasks itself."""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.spark,
    # Of pyspark: the collection of a result leaves its socket to the collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"),
]
ANSWER_S_MAX = 30.0
RPC_REQUEST, RPC_RESPONSE = 3, 4
"""Types of messages of org.apache.spark.network.protocol."""


def serialized(spark, text):
    """Returns Java's serialized form of the question whether an endpoint of that name is there."""
    jvm, arguments = spark._jvm, spark.sparkContext._gateway.new_array(spark._jvm.java.lang.Object, 1)
    arguments[0] = text
    name = "org.apache.spark.rpc.netty.RpcEndpointVerifier$CheckExistence"
    made = jvm.java.lang.Class.forName(name).getConstructors()[0].newInstance(arguments)
    out = jvm.java.io.ByteArrayOutputStream()
    jvm.java.io.ObjectOutputStream(out).writeObject(made)
    return bytes(out.toByteArray())


def question(spark, port):
    host, receiver = b"127.0.0.1", b"endpoint-verifier"
    envelope = b"\0" + b"\1" + struct.pack(">H", len(host)) + host + struct.pack(">i", port)
    envelope += struct.pack(">H", len(receiver)) + receiver
    body = envelope + serialized(spark, "HeartbeatReceiver")
    message = struct.pack(">bqi", RPC_REQUEST, 7, len(body)) + body
    return struct.pack(">q", len(message) + 8) + message


def answer_to(port, message):
    """Returns the type of the message that comes back; None where the driver hangs up."""
    with socket.create_connection(("127.0.0.1", port), ANSWER_S_MAX) as peer:
        peer.settimeout(ANSWER_S_MAX)
        peer.sendall(message)
        head = b""
        while len(head) < 9 and (more := peer.recv(9 - len(head))):
            head += more
    return head[8] if len(head) == 9 else None


def listening(pid):
    """Returns the (address, port) on which a process listens, in the kernel's form of addresses."""
    inodes = {os.readlink(link)[8:-1] for link in Path(f"/proc/{pid}/fd").iterdir() if is_socket(link)}
    found = set()
    for family in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{family}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                address, port = fields[1].split(":")
                found.add((address, int(port, 16)))
    return found


def is_socket(link):
    try:
        return os.readlink(link).startswith("socket:[")
    except OSError:
        return False


def test_the_driver_reads_no_object_of_a_peer_that_does_not_know_its_secret(spark):
    conf = spark.sparkContext._jsc.sc().env().conf()
    port = int(conf.get("spark.driver.port"))
    assert answer_to(port, question(spark, port)) != RPC_RESPONSE
    assert conf.get("spark.authenticate") == "true"
    assert conf.get("spark.network.crypto.enabled") == "true"
    assert spark.range(1000).repartition(3).selectExpr("sum(id)").collect()[0][0] == 499500


def test_a_driver_that_runs_its_tasks_itself_listens_to_this_machine_only(spark):
    pid = int(spark._jvm.java.lang.ProcessHandle.current().pid())
    found = listening(pid)
    assert found
    # 127.0.0.1, also where it is written as an address of IPv6.
    own = {"0100007F", "0000000000000000FFFF00000100007F"}
    assert {address for address, _ in found} <= own
    assert not spark.sparkContext.uiWebUrl


def test_no_secret_of_the_driver_is_among_its_arguments_or_variables(spark):
    pid = int(spark._jvm.java.lang.ProcessHandle.current().pid())
    secret = spark.sparkContext._jsc.sc().env().securityManager().getSecretKey()
    assert len(secret) >= 32
    for name in ("cmdline", "environ"):
        assert secret.encode() not in Path(f"/proc/{pid}/{name}").read_bytes()
    gateway = spark.sparkContext._gateway.gateway_parameters.auth_token
    assert len(gateway) >= 32
    for name in ("cmdline", "environ"):
        assert gateway.encode() not in Path(f"/proc/{pid}/{name}").read_bytes()
