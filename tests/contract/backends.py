"""What every backend of coordination must do, as one suite; a rig says how its servers are cut and its workers frozen."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path
from typing import Any

import pytest
from cdcworker.coordinator import memory
from cdcworker.coordinator.api import LogRecord, Term, TermOver, WriterFenced, WriteUnknown
from cdcworker.coordinator.errors import OTHER_CLUSTER
from cdcworker.coordinator.kafka.internal_topics import TopicNames
from cdcworker.coordinator.log.leader_claim import CLUSTER
from cdcworker.coordinator.model import Leader, PutConnector
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.devstack.ports import free_ports
from cdcworker.worker.herder.backends import make_backend
from cdcworker.worker.herder.config import HerderConfig

from .. import herders
from ..herders import eventually, placement

HERDERS = Path(herders.__file__)
HANGS_S = 30.0
"""After so long a call of Kafka's client does not keep to its time-out."""


class Rig:
    """One cluster on one backend: herders here and elsewhere, bare members, bare writers, the log."""

    backend = ""
    session_s = 6.0

    def __init__(self, bootstrap: str = "", **more: Any) -> None:
        self.bootstrap = bootstrap
        self.group = f"g-{uuid.uuid4().hex[:8]}"
        self.more = {"backend": self.backend, "session_timeout_s": self.session_s, **more}
        self.stack = contextlib.ExitStack()
        self.backends: dict[str, Any] = {}

    def config(self, worker: str, **more: Any) -> HerderConfig:
        settings = {
            "kafka": {"bootstrap.servers": self.bootstrap},
            "group_id": self.group,
            "worker_id": worker,
            "url": f"http://{worker}",
            "topics": TopicNames.of_group(self.group),
            "offsets_partitions": 3,
        }
        return HerderConfig(**{**settings, **self.more, **more})

    def opened(self, worker: str) -> Any:
        """A backend without a herder."""
        if worker not in self.backends:
            self.backends[worker] = backend = make_backend(self.config(worker))
            self.stack.callback(backend.close)
            backend.open()
        return self.backends[worker]

    def member(self, worker: str) -> Any:
        return self.stack.enter_context(contextlib.closing(self.opened(worker).join()))

    def writer(self, worker: str = "writer") -> Any:
        return self.stack.enter_context(contextlib.closing(self.opened(worker).claim()))

    def records(self) -> list[LogRecord]:
        """The whole config log, from its start."""
        with contextlib.closing(self.opened("reader").configs()) as log:
            return list(log.read_to_end(20))

    def herder(self, worker: str, **more: Any) -> Any:
        one = herders.herder(self.bootstrap, self.group, worker, None, **{**self.more, **more})
        self.stack.callback(one.stop)
        assert one.wait_started(30)
        return one

    def other(self, worker: str) -> Any:
        """A herder that can be killed and frozen."""
        return self.stack.enter_context(contextlib.closing(Outside(self, worker)))

    def lose(self, member: Any) -> None:
        """The servers take the member for dead, and it can learn of that."""
        raise NotImplementedError

    def cut(self) -> contextlib.AbstractContextManager[None]:
        """Whoever stores the log does not answer."""
        raise NotImplementedError

    def quick_writer(self) -> Any:
        """Returns the leader's writer that does not wait for long."""
        return self.writer()


class Address:
    """The address of a rig's workers: it takes connections and answers nothing, which proves nothing, until it refuses."""

    def __init__(self, rig: Rig) -> None:
        (self.port,) = free_ports(1)
        rig.more["url"] = f"http://127.0.0.1:{self.port}"
        self.listen()
        rig.stack.callback(self.refuse)

    def listen(self) -> None:
        self.socket = socket.create_server(("127.0.0.1", self.port), backlog=128)

    def refuse(self) -> None:
        self.socket.close()


class Outside:
    """A herder in a process of its own. It makes the connectors that it is told."""

    def __init__(self, rig: Rig, worker: str) -> None:
        argv = [sys.executable, str(HERDERS), rig.bootstrap, rig.group, worker, json.dumps(rig.more)]
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, text=True)

    def put(self, name: str, tasks: int) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{name} {tasks}\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)

    def freeze(self) -> None:
        os.kill(self.process.pid, signal.SIGSTOP)

    def wake(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)

    def close(self) -> None:
        self.process.kill()
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(10)


class Thread:
    """A herder in this process whose thread can be held: for a backend without processes that is a frozen worker."""

    def __init__(self, rig: Rig, worker: str) -> None:
        self.herder = rig.herder(worker)
        self.held = threading.Event()

    def put(self, name: str, tasks: int) -> None:
        self.herder.submit(PutConnector(name, {"tasks.max": str(tasks)}, kind="source"))

    def freeze(self) -> None:
        began = threading.Event()
        self.herder._post(lambda: (began.set(), self.held.wait(60)))
        assert began.wait(10)

    kill = freeze

    def wake(self) -> None:
        self.held.set()

    close = wake


class MemoryRig(Rig):
    backend = "memory"
    session_s = 3.0

    def other(self, worker: str) -> Any:
        one = Thread(self, worker)
        self.stack.callback(one.close)
        return one

    def lose(self, member: Any) -> None:
        cluster = memory.cluster(self.group, self.session_s)
        with cluster.group.lock:
            cluster.group.leave(member._member)

    @contextlib.contextmanager
    def cut(self) -> Any:
        faults = memory.cluster(self.group, self.session_s).transactions.faults
        faults.append("unknown_done")
        yield
        faults.clear()


class KafkaRig(Rig):
    backend = "kafka"

    def __init__(self, kafka: Any, **more: Any) -> None:
        super().__init__(kafka.bootstrap, **more)
        self.kafka = kafka

    def lose(self, member: Any) -> None:
        """Nobody answers for longer than the session: the client calls that a loss by itself."""
        self.kafka.pause()
        self.stack.callback(self.kafka.resume)
        eventually(lambda: (member.tick(0.05), member.term() is None)[1], self.session_s * 5, "the end of the term")
        self.kafka.resume()

    @contextlib.contextmanager
    def cut(self) -> Any:
        self.kafka.pause()
        try:
            yield
        finally:
            self.kafka.resume()

    def quick_writer(self) -> Any:
        # A broker's first transaction of all waits until the topic for them is made.
        self.writer("warm")
        kafka = {"bootstrap.servers": self.bootstrap, "producer.socket.timeout.ms": "2000"}
        make = make_backend(self.config("quick", kafka=kafka))
        from cdcworker.worker.herder import backends

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(backends, "TRANSACTION_S", 2.0)
            return self.stack.enter_context(contextlib.closing(make.claim()))


class ZooKeeperRig(KafkaRig):
    backend = "zookeeper"

    def __init__(self, kafka: Any, zookeeper: Any, **more: Any) -> None:
        super().__init__(kafka, zookeeper_connect=zookeeper.connect, **more)
        self.zookeeper = zookeeper

    def lose(self, member: Any) -> None:
        """Somebody else ends the member's session: it learns so when the server closes the connection."""
        from kazoo.client import KazooClient

        session = member._current.client.client_id
        thief = KazooClient(self.zookeeper.connect, timeout=self.session_s, client_id=session)
        thief.start(10)
        thief.stop()
        thief.close()


def leader_of(*herds: Any) -> Any:
    return eventually(lambda: next((one for one in herds if one.view().is_leader), None), what="a leader")


def elected(*members: Any) -> Any:
    """The one that has a term, once there is one; never two."""

    def owner() -> Any:
        for one in members:
            one.tick(0.01)
        owners = [one for one in members if one.term()]
        assert len(owners) <= 1
        return owners and owners[0]

    return eventually(owner, 60, what="an owner of the term")


class BackendContract:
    """Inherit, and give a fixture `rig`."""

    # --- the election -----------------------------------------------------------------------------------------------

    def test_one_of_several_members_has_the_term(self, rig):
        members = [rig.member(f"w{n}") for n in range(3)]
        first = elected(*members)
        for _ in range(100):
            assert elected(*members) is first

    def test_a_member_that_joins_does_not_take_the_lead(self, rig):
        first = rig.member("w2")
        elected(first)
        others = [rig.member("w1"), rig.member("w3")]
        deadline = time.monotonic() + 2
        while time.monotonic() < deadline:
            elected(first, *others)
            assert all(one.term() is None for one in others)

    def test_a_member_that_leaves_is_followed_within_two_seconds_by_one_with_a_higher_hint(self, rig):
        members = [rig.member("w1"), rig.member("w2")]
        first = elected(*members)
        second = next(one for one in members if one is not first)
        hint = first.term().hint
        began = time.monotonic()
        first.close()
        assert first.term() is None
        assert elected(second) is second
        assert time.monotonic() - began < 2
        assert second.term().hint > hint

    def test_a_lost_session_ends_the_term(self, rig):
        members = [rig.member("w1"), rig.member("w2")]
        first = elected(*members)
        second = next(one for one in members if one is not first)
        term = first.term()
        rig.lose(first)
        eventually(lambda: (first.tick(0.01), first.term() != term)[1], 30, "the end of the term")
        again = elected(first, second)
        assert again.term() != term
        assert again.term().hint > term.hint

    def test_a_place_that_another_worker_ends_goes_to_the_next_and_its_writes_are_refused(self, rig):
        members = [rig.member("w1"), rig.member("w2")]
        first = elected(*members)
        second = next(one for one in members if one is not first)
        place, writer = first.term(), rig.writer()
        gone = Leader(1, "w1", "b1", "", place.hint, place.member)
        # Its client goes on in the background: no session ends here.
        rig.opened("other").remove_leader(gone)
        assert elected(second) is second
        assert second.term().hint > place.hint
        rig.writer("next").write([LogRecord("b", {"n": 2})], second.term())
        with pytest.raises((TermOver, WriterFenced, WriteUnknown)):
            writer.write([LogRecord("a", {"n": 1})], place)
        assert [record.key for record in rig.records()] == ["b"]
        eventually(lambda: (first.tick(0.01), second.tick(0.01), first.term() is None)[2], 30, "the end of the first")
        # A request that comes late ends nothing that began after it.
        eventually(lambda: (first.tick(0.01), second.tick(0.01), second.term() is not None)[2], 30, "the second's term")
        rig.opened("other").remove_leader(gone)
        for _ in range(50):
            assert elected(first, second) is second

    def test_a_closed_member_has_no_term_and_comes_to_none(self, rig):
        member = rig.member("w1")
        elected(member)
        member.close()
        member.close()
        member.tick(0.05)
        assert member.term() is None

    # --- the leader's writer ------------------------------------------------------------------------------------------

    def test_a_writer_is_fenced_by_the_next_one_and_what_it_wrote_after_is_invisible(self, rig):
        member = elected(rig.member("w1"))
        first = rig.writer()
        first.write([LogRecord("a", {"n": 1})], member.term())
        second = rig.writer()
        # Without a proof to send, the first word of the broker comes while the commit is under way.
        with pytest.raises((WriterFenced, WriteUnknown)):
            first.write([LogRecord("a", {"n": 2})], member.term())
        with pytest.raises(WriterFenced):
            first.write([LogRecord("a", {"n": 3})], member.term())
        second.write([LogRecord("b", {"n": 4})], member.term())
        assert [(record.key, record.value["n"]) for record in rig.records()] == [("a", 1), ("b", 4)]

    def test_a_term_of_no_election_writes_nothing(self, rig):
        elected(rig.member("w1"))
        writer = rig.writer()
        for void in (Term(None, 1), Term(b"0:nobody", 1)):
            with pytest.raises(TermOver):
                writer.write([LogRecord("a", {"n": 1})], void)
        assert rig.records() == []

    def test_a_write_without_an_answer_is_unknown_and_never_half(self, rig):
        member = elected(rig.member("w1"))
        writer, term, outcomes = rig.quick_writer(), member.term(), queue.SimpleQueue()

        def write() -> None:
            try:
                writer.write([LogRecord("a", {"n": 1}), LogRecord("b", {"n": 1})], term)
            except (WriteUnknown, WriterFenced, TermOver) as exc:
                outcomes.put(exc)
            else:
                outcomes.put(None)

        with rig.cut():
            # As the herder does: a transactional call of Kafka's client can exceed its time-out for as long as nobody answers.
            threading.Thread(target=write, daemon=True).start()
            with contextlib.suppress(queue.Empty):
                assert isinstance(outcomes.get(timeout=HANGS_S), WriteUnknown)
        rig.writer("next")
        assert [record.key for record in rig.records()] in ([], ["a", "b"])

    # --- the herd ---------------------------------------------------------------------------------------------------

    def test_what_was_answered_is_in_the_log_under_one_epoch_and_reaches_the_others(self, rig):
        herds = [rig.herder("w1"), rig.herder("w2")]
        request = PutConnector("c", {"tasks.max": "2"}, kind="source")
        # The join of the second one may end the first one's term while it is asked.
        eventually(lambda: leader_of(*herds).submit(request).result(60).outcome == "ok", what="the connector")
        for one in herds:
            eventually(lambda one=one: len(placement(one.view())) == 2, what="both tasks")
        assert sum(one.view().is_leader for one in herds) == 1
        answered = {record.key: record for record in rig.records() if record.key in ("connector/c", "tasks/c")}
        (epoch,) = {int(record.headers["e"]) for record in answered.values()}
        # Not always the leader's of now: a member's rejoin ends a term, and the next one writes nothing again.
        assert 1 <= epoch <= leader_of(*herds).view().state.epoch

    def test_a_killed_leader_is_followed_within_the_session_and_two_seconds(self, rig):
        dying, follower = self.pair(rig)
        epoch = follower.view().state.epoch
        killed = time.monotonic()
        dying.kill()
        eventually(lambda: follower.view().is_leader, rig.session_s + 2, "the follower's lead")
        print(f"\n{rig.backend}: next leader {time.monotonic() - killed:.1f} s after the kill")
        eventually(lambda: list(placement(follower.view()).values()) == ["w2"] * 4, rig.session_s + 2, "all tasks here")
        assert time.monotonic() - killed < rig.session_s + 2
        assert follower.view().state.epoch > epoch
        reply = follower.submit(PutConnector("d", {"tasks.max": "1"}, kind="source")).result(60)
        assert reply.outcome == "ok"

    def test_a_frozen_leader_that_wakes_writes_nothing_and_follows(self, rig):
        frozen, follower = self.pair(rig)
        frozen.freeze()
        eventually(lambda: follower.view().is_leader, rig.session_s + 4, "the follower's lead")
        eventually(lambda: list(placement(follower.view()).values()) == ["w2"] * 4, rig.session_s + 4, "all tasks here")
        epoch = follower.view().state.epoch
        # What it was told while it could not decide: it finds the request and its wrong belief at the same moment.
        frozen.put("zombie", 1)
        frozen.wake()
        eventually(lambda: sorted(placement(follower.view()).values()) == ["w1", "w1", "w2", "w2"], 30, "a new split")
        # A write that meets the other's return to the group may be refused once.
        request = PutConnector("d", {"tasks.max": "1"}, kind="source")
        eventually(lambda: follower.submit(request).result(60).outcome == "ok", 20, "a write by the follower")
        records = rig.records()
        epochs = [int(record.headers["e"]) for record in records]
        assert epochs == sorted(epochs)
        assert {record.headers["w"] for record in records if int(record.headers["e"]) >= epoch} == {"w2"}
        assert "connector/zombie" not in {record.key for record in records}

    def test_a_killed_leader_whose_address_refuses_is_followed_before_its_session_ends(self, rig):
        address = Address(rig)
        dying, follower = self.pair(rig)
        killed = time.monotonic()
        dying.kill()
        address.refuse()
        eventually(lambda: follower.view().is_leader, rig.session_s, "the follower's lead")
        print(f"\n{rig.backend}: next leader {time.monotonic() - killed:.1f} s after the kill")
        assert time.monotonic() - killed < rig.session_s - 0.5, "it waited for the session"
        eventually(lambda: list(placement(follower.view()).values()) == ["w2"] * 4, rig.session_s, "all tasks here")

    def test_a_frozen_leader_that_was_taken_out_wrongly_wakes_and_writes_nothing(self, rig):
        address = Address(rig)
        frozen, follower = self.pair(rig)
        self.wake_from_the_dead(rig, address, frozen, follower)

    @pytest.mark.long
    @pytest.mark.timeout(1800)
    def test_a_frozen_leader_that_was_taken_out_wrongly_writes_nothing_however_often(self, rig):
        address = Address(rig)
        frozen, follower = self.pair(rig)
        self.wake_from_the_dead(rig, address, frozen, follower)
        for number in range(6):
            eventually(follower.drain, 60, "the follower's end")
            eventually(lambda: rig.records()[-1].headers["w"] == "w1", 30, "the lead of the first")
            follower = rig.herder("w2")
            eventually(
                lambda f=follower: sorted(placement(f.view()).values()) == ["w1", "w1", "w2", "w2"], 60, "a split"
            )
            self.wake_from_the_dead(rig, address, frozen, follower, f"zombie{number}")

    @staticmethod
    def wake_from_the_dead(rig: Rig, address: Address, frozen: Any, follower: Any, name: str = "zombie") -> None:
        """Stops the leader, lets it be followed, and wakes it with a request that it might still decide."""
        frozen.freeze()
        address.refuse()
        eventually(lambda: follower.view().is_leader, rig.session_s + 4, "the follower's lead")
        eventually(lambda: list(placement(follower.view()).values()) == ["w2"] * 4, rig.session_s + 4, "all tasks here")
        address.listen()
        epoch = follower.view().state.epoch
        frozen.put(name, 1)
        frozen.wake()
        eventually(lambda: sorted(placement(follower.view()).values()) == ["w1", "w1", "w2", "w2"], 60, "a new split")
        records = rig.records()
        epochs = [int(record.headers["e"]) for record in records]
        assert epochs == sorted(epochs)
        assert {record.headers["w"] for record in records if int(record.headers["e"]) == epoch} == {"w2"}
        by_zombie = [r for r in records if r.key == f"connector/{name}" and int(r.headers["e"]) < epoch]
        assert not by_zombie, "it decided as the leader that it was"

    def test_a_drained_leader_is_followed_at_once(self, rig):
        herds = [rig.herder("w1"), rig.herder("w2")]
        leader = leader_of(*herds)
        follower = next(one for one in herds if one is not leader)
        assert leader.drain()
        drained = time.monotonic()
        eventually(lambda: follower.view().is_leader, 2, "the follower's lead")
        print(f"\n{rig.backend}: next leader {time.monotonic() - drained:.2f} s after the drain")

    def test_a_worker_of_another_cluster_does_not_start_on_this_ones_log(self, rig):
        first = rig.herder("w1")
        eventually(lambda: CLUSTER in first.view().state.settings, what="the identity in the log")
        assert first.drain()
        mine = TopicNames.of_group(rig.group)
        alien = TopicNames.of_group(rig.group, {"offset.storage.topic": f"{rig.group}.other"})
        with pytest.raises(CdcError) as caught:
            rig.herder("w2", topics=alien)
        assert caught.value.code == OTHER_CLUSTER
        assert alien.offsets in str(caught.value)
        assert mine.offsets in str(caught.value)
        assert rig.herder("w3").view().state.settings[CLUSTER]["backend"] == rig.backend

    @staticmethod
    def pair(rig: Rig) -> Any:
        """A leader elsewhere and a follower here that know each other, and two tasks on each."""
        leader = rig.other("w1")
        eventually(lambda: "leader" in {record.key for record in rig.records()}, 30, "the first claim")
        follower = rig.herder("w2")
        eventually(lambda: set(follower.view().workers) == {"w1", "w2"}, what="both workers")
        leader.put("c", 4)
        eventually(lambda: "c" in follower.view().state.connectors or leader.put("c", 4), what="the connector")
        eventually(lambda: sorted(placement(follower.view()).values()) == ["w1", "w1", "w2", "w2"], what="a split")
        assert not follower.view().is_leader
        return leader, follower


@contextlib.contextmanager
def opened(rig: Rig) -> Any:
    """The rig for one test."""
    with rig.stack:
        yield rig
