"""The client library's classes as production uses them, over the simulated network and broker."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from cdcworker.coordinator.kafka.leadership import parse_metadata
from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition

from .broker import OK, Broker, Code, Entry, Partition
from .engine import TIMED_OUT, Killed, Proc, Signal, World, block
from .group import SERVICE as GROUP
from .group import GroupClient, GroupCoordinator
from .network import Network
from .shims import SHIMS

TXN = "txn"
EARLIEST = -2
REQUEST_S = 1.0
RETRY_S = 0.05
FETCH_AGAIN_S = 0.25
FENCING = (KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_ID_MAPPING)


class Cluster:
    """The servers that clients reach: one per history, set as `Client.cluster` while it runs."""

    def __init__(self, world: World, rebalance_s: float = 30.0) -> None:
        self.world = world
        self.network = Network(world)
        self.broker = Broker(world)
        self.group = GroupCoordinator(world, rebalance_s)
        self.data_arrived: dict[Proc, Callable[[], None]] = {}


class Client:
    """The base of all clients: it knows the process that they run in, which no call outlives."""

    cluster: Cluster

    def __init__(self) -> None:
        self.proc = SHIMS.proc()
        self.closed = False

    def live(self) -> None:
        if not self.proc.alive:
            raise Killed
        if self.closed:
            raise RuntimeError("client is closed")

    def ask(self, service: str, handler: Callable[[], Any], timeout_s: float) -> Any:
        return self.cluster.network.ask(self.proc, self, service, handler, timeout_s)

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> Any:
        """Returns metadata at once, as every broker knows it."""
        self.live()
        return _metadata(self.cluster.broker, topic)

    def poke(self) -> None:
        wake = self.cluster.data_arrived.get(self.proc)
        if wake is not None:
            wake()


def error(code: Code, text: str = "simulated", **flags: bool) -> KafkaException:
    return KafkaException(KafkaError(code, text, **flags))


class Message:
    def __init__(self, partition: Partition, entry: Entry | None, problem: KafkaError | None = None) -> None:
        self._partition, self._entry, self._problem = partition, entry, problem

    def error(self) -> KafkaError | None:
        return self._problem

    def topic(self) -> str:
        return self._partition.topic

    def partition(self) -> int:
        return self._partition.number

    def offset(self) -> int:
        return self._entry.offset if self._entry else -1

    def key(self) -> bytes | None:
        return self._entry.key if self._entry else None

    def value(self) -> bytes | None:
        return self._entry.value if self._entry else None

    def headers(self) -> Any:
        return self._entry.headers if self._entry else None

    def timestamp(self) -> tuple[int, int]:
        return (1, self._entry.timestamp_ms if self._entry else 0)


class _Tail:
    """One partition that a consumer reads."""

    def __init__(self, consumer: Consumer, partition: Partition, start: int) -> None:
        self.consumer, self.partition = consumer, partition
        self.fetched = self.position = max(0, start)
        self.is_over = False
        self._idle = False
        self._try()

    def _try(self) -> None:
        """Sends a fetch, which waits at the broker for records. It runs in the process."""
        if self.is_over:
            return
        network, proc = self.consumer.cluster.network, self.consumer.proc
        if network.rules and network.is_cut(proc, self.partition.service):
            proc.later(FETCH_AGAIN_S, self._try)
            return
        network.world.at(network._hop(), self._arrive)

    def _arrive(self) -> None:
        if self.is_over or not self.consumer.proc.alive:
            return
        partition, uncommitted = self.partition, self.consumer.reads_uncommitted
        if (partition.hw if uncommitted else partition.lso) <= self.fetched:
            waiting = partition.awaiting_end if uncommitted else partition.waiting
            waiting[self._arrive_soon] = None
            return
        entries, following = partition.fetch(self.fetched, uncommitted=uncommitted)
        network, proc = self.consumer.cluster.network, self.consumer.proc
        if network.rules and network.is_cut(proc, self.partition.service):
            proc.later(FETCH_AGAIN_S, self._try)
            return
        delays = network._delays(proc, self.partition.service, True) if network.rules else (network._hop(),)
        if not delays:
            proc.later(REQUEST_S, self._try)
            return
        network.world.at(delays[0], proc.call, self._take, entries, following)

    def _arrive_soon(self) -> None:
        self.consumer.cluster.world.at(0.0, self._arrive)

    def _take(self, entries: list[Entry], following: int) -> None:
        if self.is_over:
            return
        self.fetched = following
        if entries:
            self.consumer.buffer.extend((self, entry) for entry in entries)
        self._settle()
        self.consumer.arrived()
        self._try()

    def _settle(self) -> None:
        """Moves the position past the records, and control records, that are no longer in the buffer."""
        if not any(tail is self for tail, _ in self.consumer.buffer):
            self.position = max(self.position, self.fetched)


class Consumer(Client):
    """Either a reader of assigned partitions or a member of the group."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.config = config
        self.reads_uncommitted = config.get("isolation.level") == "read_uncommitted"
        self.buffer: deque[tuple[_Tail, Entry]] = deque()
        self.tails: dict[tuple[str, int], _Tail] = {}
        self.member: GroupClient | None = None
        self._signal = Signal()
        self._callbacks: dict[str, Callable[..., None]] = {}
        self._topic = ""

    # --- reader -----------------------------------------------------------------------------------------------------

    def assign(self, places: Sequence[TopicPartition]) -> None:
        self.live()
        self.unassign()
        assert self.config.get("isolation.level") in ("read_committed", "read_uncommitted"), "a reader says which it is"
        for place in places:
            partition = self.cluster.broker.partition(place.topic, place.partition)
            self.tails[place.topic, place.partition] = _Tail(self, partition, place.offset)

    def unassign(self) -> None:
        for tail in self.tails.values():
            tail.is_over = True
        self.tails, self.buffer = {}, deque()

    def arrived(self) -> None:
        self._signal.set_off()
        self.poke()

    def _next(self) -> Message | None:
        if not self.buffer:
            return None
        tail, entry = self.buffer.popleft()
        tail.position = entry.offset + 1
        if not self.buffer or not any(other is tail for other, _ in self.buffer):
            tail.position = max(tail.position, tail.fetched)
        return Message(tail.partition, entry)

    def poll(self, timeout: float = 0.0) -> Message | None:
        self.live()
        if self.member is not None:
            return self._poll_member()
        if not self.buffer and timeout > 0:
            self._signal.wait_for(lambda: self.buffer, timeout)
        return self._next()

    def consume(self, most: int, timeout: float = 0.0) -> list[Message]:
        self.live()
        if not self.buffer and timeout > 0:
            self._signal.wait_for(lambda: self.buffer, timeout)
        out: list[Message] = []
        while len(out) < most and (message := self._next()) is not None:
            out.append(message)
        return out

    def position(self, places: Sequence[TopicPartition]) -> list[TopicPartition]:
        self.live()
        return [TopicPartition(p.topic, p.partition, self.tails[p.topic, p.partition].position) for p in places]

    # --- member -----------------------------------------------------------------------------------------------------

    def subscribe(self, topics: Sequence[str], **callbacks: Callable[..., None]) -> None:
        self.live()
        self._topic, self._callbacks = topics[0], callbacks
        cluster = self.cluster
        self.member = GroupClient(self.proc, cluster.network, cluster.group, self.config)
        self.member.wake = self.poke

    def unsubscribe(self) -> None:
        self.live()
        member, self.member = self.member, None
        if member is not None:
            member.close()

    def assignment(self) -> list[TopicPartition]:
        """Returns the partition of the group; a member that has left gets none."""
        self.live()
        return [TopicPartition(self._topic, 0)] if self.member is not None and self.member.has else []

    def _poll_member(self) -> Message | None:
        assert self.member is not None
        events, exceeded = self.member.poll()
        for kind, has in events:
            places = [TopicPartition(self._topic, 0)] if has else []
            if kind == "lost" and "on_lost" not in self._callbacks:
                kind = "revoke"
            self._callbacks[f"on_{kind}"](self, places)
        self.member.handled(events)
        if exceeded:
            problem = KafkaError(KafkaError._MAX_POLL_EXCEEDED, "not polled")
            return Message(self.cluster.broker.partition(self._topic, 0), None, problem)
        return None

    def consumer_group_metadata(self) -> bytes:
        self.live()
        assert self.member is not None
        return self.member.metadata()

    def close(self) -> None:
        if self.closed:
            return
        self.live()
        self.unassign()
        if self.member is not None:
            self.member.close()
        self.closed = True
        self.cluster.network.forget(self)


class Answered:
    """A future of the admin client."""

    def __init__(self) -> None:
        self.value: Any = TIMED_OUT
        self._signal = Signal()

    def set(self, value: Any) -> None:
        if self.value is TIMED_OUT:
            self.value = value
            self._signal.set_off()

    def result(self, timeout: float | None = None) -> Any:
        if not self._signal.wait_for(lambda: self.value is not TIMED_OUT, timeout if timeout is not None else 60.0):
            raise error(KafkaError._TIMED_OUT, retriable=True)
        return self.value


class AdminClient(Client):
    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.config = config

    def list_offsets(
        self, asked: Mapping[TopicPartition, Any], isolation_level: Any = None, request_timeout: float = 60.0
    ) -> dict[TopicPartition, Answered]:
        self.live()
        out = {}
        stable = isolation_level == IsolationLevel.READ_COMMITTED
        for place, spec in asked.items():
            partition = self.cluster.broker.partition(place.topic, place.partition)
            out[place] = answered = Answered()

            def look(partition: Partition = partition, is_first: bool = spec._value == EARLIEST) -> Any:
                end = partition.lso if stable else partition.hw
                return SimpleNamespace(
                    offset=min((e.offset for e in partition.log[:1]), default=end) if is_first else end
                )

            self._repeat(answered, partition.service, look, self.proc.mono() + request_timeout)
        return out

    def _repeat(self, answered: Answered, service: str, handler: Callable[[], Any], until: float) -> None:
        """Sends a lost request again, as the connection would."""
        if answered.value is TIMED_OUT and self.proc.mono() < until:
            self.cluster.network.send(self.proc, answered, service, handler, answered.set)
            self.proc.later(REQUEST_S, self._repeat, answered, service, handler, until)

    def poll(self, _timeout: float = 0.0) -> int:
        return 0


def _metadata(broker: Broker, topic: str | None) -> Any:
    topics = {
        name: SimpleNamespace(
            partitions={n: SimpleNamespace(leader=1) for n in range(len(partitions))}, error=None, topic=name
        )
        for name, partitions in broker.topics.items()
        if topic in (None, name)
    }
    return SimpleNamespace(topics=topics, cluster_id="simulated")


class _Outgoing:
    """Records on their way to one partition: a batch under way, the rest waiting."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Any, Any]] = []
        self.sequence = -1
        self.busy = False


class Producer:
    """The producer that production code holds; dropping it ends the library behind it, which aborts nothing."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._library = _Library(config)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._library, name)

    def __len__(self) -> int:
        return self._library.in_flight

    def __del__(self) -> None:
        library = self.__dict__.get("_library")
        if library is not None:
            library.dropped = True


class _Library(Client):
    """The library behind a producer, idempotent or transactional. Its fibers send records, as librdkafka's threads
    do."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.config = config
        self.name: str | None = config.get("transactional.id")
        self.timeout_s = int(config.get("transaction.timeout.ms", 60_000)) / 1000
        self.delivery_s = int(config.get("delivery.timeout.ms", 30_000)) / 1000
        self.pid, self.epoch = -1, -1
        self.fatal: KafkaError | None = None
        self.abortable: KafkaError | None = None
        self.out: dict[Partition, _Outgoing] = {}
        self.added: dict[Partition, None] = {}
        self.reports: deque[Callable[[], None]] = deque()
        self.in_flight = 0
        self.in_transaction = False
        self.in_doubt = False
        self.has_offsets = False
        self.dropped = self.starting = False
        self._signal = Signal()
        if self.name is None:
            self.pid, self.epoch = self.cluster.broker.transactions.new_pid(), 0

    @property
    def is_gone(self) -> bool:
        """Tells whether production code has dropped the producer; a call in flight still holds it."""
        return self.dropped and not self.starting

    # --- records ----------------------------------------------------------------------------------------------------

    def produce(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        partition: int = -1,
        on_delivery: Callable[..., None] | None = None,
        *,
        headers: Any = None,
        **_more: Any,
    ) -> None:
        self.live()
        if self.fatal is not None:
            raise KafkaException(KafkaError(KafkaError._FATAL, "fatal error", fatal=True))
        if self.name is not None and not self.in_transaction:
            raise error(KafkaError._STATE)
        place = self._place(topic, key, partition)
        encoded = tuple((n, v.encode() if isinstance(v, str) else v) for n, v in headers or ())
        outgoing = self.out.setdefault(place, _Outgoing())
        outgoing.waiting.append(((key, value, encoded), (on_delivery, self.proc.mono())))
        self.in_flight += 1
        self._start(place, outgoing)

    def _place(self, topic: str, key: bytes | None, number: int) -> Partition:
        if number < 0:
            number = sum(key or b"") % len(self.cluster.broker.topics[topic])
        return self.cluster.broker.partition(topic, number)

    def _start(self, place: Partition, outgoing: _Outgoing) -> None:
        if not outgoing.busy:
            outgoing.busy = True
            self.proc.spawn(lambda: self._carry(place, outgoing))

    def _carry(self, place: Partition, outgoing: _Outgoing) -> None:
        """Sends the records waiting for one partition in order, each batch until it is acknowledged or has expired."""
        while outgoing.waiting and not self.is_gone:
            batch, outgoing.waiting = outgoing.waiting, []
            outgoing.sequence += 1
            code = self._send(place, outgoing.sequence, [record for record, _ in batch], batch[0][1][1])
            self._report(place, batch, code)
        outgoing.busy = False

    def _send(self, place: Partition, sequence: int, records: list[Any], since: float) -> Code:
        transactions, name, pid, epoch = self.cluster.broker.transactions, self.name, self.pid, self.epoch
        verify = None if name is None else lambda: transactions.verify(name, pid, epoch, place)
        while not self.is_gone:
            if self.proc.mono() - since > self.delivery_s:
                return KafkaError._MSG_TIMED_OUT
            if name is not None and place not in self.added:
                code = self.ask(TXN, lambda: transactions.add(name, pid, epoch, (place,)), REQUEST_S)
                if code == OK:
                    self.added[place] = None
            else:
                answer = self.ask(
                    place.service, lambda: place.produce(pid, epoch, sequence, records, verify), REQUEST_S
                )
                code = answer if answer is TIMED_OUT else answer[0]
                if code == OK:
                    return OK
            if code in FENCING or code == KafkaError.INVALID_TXN_STATE:
                return code
            if code is not TIMED_OUT and code != OK:
                block(RETRY_S)
        return KafkaError._DESTROY

    def _report(self, place: Partition, batch: list[Any], code: Code) -> None:
        if code in FENCING:
            self.fatal = KafkaError(KafkaError._FENCED, "simulated", fatal=True)
        elif code != OK and self.name is not None and self.abortable is None:
            self.abortable = KafkaError(code, "simulated", txn_requires_abort=True)
        problem = None if code == OK else KafkaError(code, "simulated")
        for _, (on_delivery, _) in batch:
            self.in_flight -= 1
            if on_delivery is not None:
                message = Message(place, None)
                self.reports.append(lambda report=on_delivery, message=message: report(problem, message))
        self._signal.set_off()
        if batch and batch[0][1][0] is not None:
            self.poke()

    def poll(self, timeout: float = 0.0) -> int:
        self.live()
        if not self.reports and timeout > 0:
            self._signal.wait_for(lambda: self.reports, timeout)
        served = 0
        while self.reports:
            self.reports.popleft()()
            served += 1
        return served

    def flush(self, timeout: float = -1) -> int:
        self.live()
        self._signal.wait_for(lambda: not self.in_flight, timeout if timeout >= 0 else 60.0)
        self.poll(0)
        return self.in_flight

    def purge(self, **_flags: bool) -> None:
        self.live()
        for outgoing in self.out.values():
            self.in_flight -= len(outgoing.waiting)
            outgoing.waiting = []

    # --- transactions -----------------------------------------------------------------------------------------------

    def _until(self, timeout: float, request: Callable[[float], Code | None]) -> None:
        """Repeats a request until it has a final answer; raises KafkaException after the time-out."""
        until = self.proc.mono() + timeout
        while True:
            left = until - self.proc.mono()
            if left <= 0:
                raise error(KafkaError._TIMED_OUT, retriable=True)
            code = request(min(left, REQUEST_S))
            if code == OK:
                return
            if code in FENCING:
                self.fatal = KafkaError(KafkaError._FENCED, "simulated", fatal=True)
                raise KafkaException(self.fatal)
            if code in (KafkaError.ILLEGAL_GENERATION, KafkaError.UNKNOWN_MEMBER_ID, KafkaError.INVALID_TXN_STATE):
                raise error(code, txn_requires_abort=True)
            if code is not TIMED_OUT:
                block(min(RETRY_S, max(left, 0.001)))

    def init_transactions(self, timeout: float = 60.0) -> None:
        self.live()
        assert self.name is not None
        name, transactions = self.name, self.cluster.broker.transactions

        def request(left: float) -> Code | None:
            answer = self.ask(TXN, lambda: transactions.init(name, self.timeout_s), left)
            if answer is TIMED_OUT:
                return TIMED_OUT  # type: ignore[return-value]
            code, self.pid, self.epoch = answer
            return code

        self.starting = True
        try:
            self._until(timeout, request)
        finally:
            self.starting = False

    def begin_transaction(self) -> None:
        self.live()
        self._healthy()
        if self.in_transaction:
            raise error(KafkaError._STATE)
        self.in_transaction, self.has_offsets, self.added = True, False, {}

    def _healthy(self) -> None:
        if self.fatal is not None:
            raise KafkaException(self.fatal)
        if self.abortable is not None:
            raise KafkaException(self.abortable)

    def send_offsets_to_transaction(self, _places: Sequence[Any], metadata: bytes, timeout: float = 60.0) -> None:
        self.live()
        self._healthy()
        generation, member = parse_metadata(metadata)
        name, pid, epoch = self.name, self.pid, self.epoch
        transactions, group = self.cluster.broker.transactions, self.cluster.group
        assert name is not None
        self._until(timeout, lambda left: self.ask(TXN, lambda: transactions.add(name, pid, epoch, ()), left))
        self.has_offsets = True
        try:
            self._until(timeout, lambda left: self.ask(GROUP, lambda: group.check_commit(member, generation), left))
        except KafkaException as exc:
            if exc.args[0].txn_requires_abort():
                self.abortable = exc.args[0]
            raise

    def commit_transaction(self, timeout: float = 60.0) -> None:
        self.live()
        until = self.proc.mono() + timeout
        if not self._signal.wait_for(lambda: not self.in_flight or self.fatal or self.abortable, timeout):
            self.in_doubt = True
            raise error(KafkaError._TIMED_OUT, retriable=True)
        self._healthy()
        self._end(True, max(0.001, until - self.proc.mono()))

    def abort_transaction(self, timeout: float = 60.0) -> None:
        self.live()
        if self.fatal is not None:
            raise KafkaException(self.fatal)
        if self.in_doubt:
            raise error(KafkaError._CONFLICT, "the commit is under way")
        self.purge()
        until = self.proc.mono() + timeout
        if not self._signal.wait_for(lambda: not self.in_flight or self.fatal, timeout):
            raise error(KafkaError._TIMED_OUT, retriable=True)
        self._end(False, max(0.001, until - self.proc.mono()))

    def _end(self, commit: bool, timeout: float) -> None:
        name, pid, epoch = self.name, self.pid, self.epoch
        transactions = self.cluster.broker.transactions
        assert name is not None
        if self.added or self.has_offsets:
            self.in_doubt = commit
            self._until(timeout, lambda left: self.ask(TXN, lambda: transactions.end(name, pid, epoch, commit), left))
        self.in_doubt = self.in_transaction = False
        self.abortable = None


__all__ = ["AdminClient", "Client", "Cluster", "Consumer", "Producer"]
