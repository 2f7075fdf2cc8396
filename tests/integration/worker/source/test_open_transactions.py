"""Transactions that the broker decided and did not end, as Kafka 4.1 to 4.3 leave them where a partition has no leader."""

from __future__ import annotations

import re
from contextlib import closing
from itertools import groupby

import pytest
from cdcworker.coordinator.kafka.compacted_log import KafkaCompactedLog
from cdcworker.coordinator.kafka.end_offsets import left_open
from cdcworker.coordinator.kafka.leader_writer import leader_transactional_id
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.devstack.kafka import QUICK_COMPILER_ONLY, EmbeddedKafka
from cdcworker.worker.herder.backends import KafkaBackend
from cdcworker.worker.herder.config import HerderConfig
from cdcworker.worker.protocol.task_spec import TRANSACTIONAL_IDS
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.conftest import serving

from .log_files import cut_last_marker
from .scripted_child import KEYS, changes
from .test_runner import Cluster, assert_exactly_once, at, cluster

__all__ = ["cluster"]
pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def kafka(devstack_dir):
    """A broker of these tests' own: each stops it and starts it again, when it reads all of its logs."""
    with serving(EmbeddedKafka(devstack_dir / "cut", jvm_options=QUICK_COMPILER_ONLY)) as broker:
        yield broker


def take_over(cluster: Cluster) -> None:
    """End what a killed task left open, as the next start of the task does."""
    for name in TRANSACTIONAL_IDS:
        producer = Producer({**cluster.kafka, "transactional.id": name(cluster.group, "shop", 0), "log_level": 2})
        producer.init_transactions(30)


def places(cluster: Cluster) -> list[tuple[str, int]]:
    return [(f"{cluster.prefix}.public.{name}", number) for name in ("a", "bb") for number in range(3)]


@pytest.fixture
def cut(kafka, until):
    """`cut(places, kind)`: where such a marker was the last that the partition had, until now.

    A position is known once the commit is decided; the markers come after it, and a partition that has none yet when the
    broker stops is left open without having been cut.
    """

    def markers(places: list[tuple[str, int]], kind: str) -> list[tuple[str, int]]:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        until(lambda: not left_open(admin, places, 10.0))
        kafka.stop()
        try:
            return [place for place in places if cut_last_marker(kafka.directory, *place, kind)]
        finally:
            kafka.start()

    return markers


def run_to(cluster: Cluster, transactions: int, **config: str) -> str:
    """The log of a task that goes on to the end of this transaction."""
    child = cluster.child(cluster.spec(transactions, **config))
    child.wait_for(lambda: at(child, transactions), "the last position")
    assert child.stop() == 0
    return child.log.decode()


def ends(cluster: Cluster) -> int:
    """Of all partitions together, records of open transactions counted."""
    config = {**cluster.kafka, "group.id": "test-ends", "isolation.level": "read_uncommitted"}
    with closing(Consumer(config)) as consumer:
        return sum(consumer.get_watermark_offsets(TopicPartition(*place), 10.0)[1] for place in places(cluster))


def kill_in_a_transaction(cluster: Cluster, transactions: int) -> None:
    """Of a task that goes on, once records of its next transaction stand in the log."""
    before = ends(cluster)
    child = cluster.child(cluster.spec(transactions), "source.before_commit=sleep:600")
    child.wait_for(lambda: ends(cluster) > before, "records of a transaction")
    child.close()


def assert_all_there(cluster: Cluster, transactions: int, repeated: int) -> None:
    """Everything in its order; `repeated` records stand there twice, one right behind the other of its key."""
    wanted: dict[tuple[str, int], list[str]] = {}
    for change in (change for lsn in range(1, transactions + 1) for change in changes(lsn, 1_000_000_000)):
        wanted.setdefault((change.table.path[1], change.after[0]), []).append(change.after[1])
    found = {
        (name, key): [row["after"]["note"] for row in rows if row["after"]["id"] == key]
        for name, rows in cluster.rows().items()
        for key in range(KEYS)
    }
    assert {place: [note for note, _ in groupby(notes)] for place, notes in found.items() if notes} == wanted
    assert sum(map(len, found.values())) == sum(map(len, wanted.values())) + repeated


def test_what_was_aborted_without_markers_does_not_appear_with_the_next_transaction(cluster, cut):
    run_to(cluster, 30)
    kill_in_a_transaction(cluster, 60)
    take_over(cluster)
    assert cut(places(cluster), "abort")
    assert re.search(r"aborted=[1-9]", run_to(cluster, 60))
    assert_exactly_once(cluster, 60)


def test_what_was_committed_without_markers_is_there_once_the_task_goes_on(cluster, cut):
    run_to(cluster, 30)
    hidden = cut(places(cluster), "commit")
    assert hidden
    found = re.findall(r"aborted=0 committed=(\d+)", run_to(cluster, 31))
    assert sum(map(int, found)) == len(hidden)
    assert_all_there(cluster, 31, len(hidden))


@pytest.mark.long
def test_a_task_that_goes_on_ends_what_its_broker_left_open(cluster, cut):
    """Nothing changes any more at the source: no next transaction would show what is hidden."""
    child = cluster.child(cluster.spec(30))
    child.wait_for(lambda: at(child, 30), "the last position")
    hidden = cut(places(cluster), "commit")
    assert hidden
    child.wait_for(lambda: f"committed={len(hidden)}".encode() in child.log, "what is hidden is found")
    assert child.stop() == 0
    assert_all_there(cluster, 30, len(hidden))


def test_a_position_that_was_acknowledged_is_not_given_up_with_its_marker(cluster, cut):
    """The source does not go back behind it."""
    child = cluster.child(cluster.spec(1))
    child.wait_for(lambda: at(child, 1), "the last position")
    positions = [(cluster.names.offsets, number) for number in range(25)]
    hidden = cut(places(cluster) + positions, "commit")
    assert len(hidden) > 1
    child.wait_for(lambda: f"committed={len(hidden) - 1}".encode() in child.log, "what is hidden is found")
    assert child.stop() == 0
    assert_all_there(cluster, 1, len(hidden) - 1)
    assert cluster.position() == {"lsn": 1}


def test_a_transaction_without_any_marker_is_sent_again(cluster, cut):
    run_to(cluster, 1)
    offsets = [(cluster.names.offsets, number) for number in range(25)]
    assert len(cut(places(cluster) + offsets, "commit")) > 1
    log = run_to(cluster, 60)
    assert "aborted=1 committed=0" in log
    assert_exactly_once(cluster, 60)


@pytest.mark.long
def test_schemas_behind_a_transaction_without_markers_are_registered(cluster, cut):
    run_to(cluster, 30)
    assert cut([(cluster.names.schemas, 0)], "commit")
    run_to(cluster, 60, scripted_wide_from="40")
    assert_exactly_once(cluster, 60, 40)


def refusal(cluster: Cluster) -> str:
    """Why the configuration log cannot be read; a broker that has just started may first refuse to look up offsets."""
    with (
        closing(KafkaCompactedLog(cluster.kafka, cluster.names.configs, client_id="before")) as configs,
        pytest.raises(CdcError) as refused,
    ):
        configs.read_to_end(2.0)
    return str(refused.value)


def test_a_leaders_write_without_its_marker_holds_up_no_successor(kafka, cluster, until, cut):
    producer = Producer({**cluster.kafka, "transactional.id": leader_transactional_id(cluster.group), "log_level": 2})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(cluster.names.configs, b"{}", b"connector/of-a-predecessor", 0)
    producer.commit_transaction(30)
    # A coordinator that has not yet written that the transaction is complete would write its marker again after the start.
    Producer({**cluster.kafka, "transactional.id": leader_transactional_id(cluster.group)}).init_transactions(30)
    assert cut([(cluster.names.configs, 0)], "commit")
    until(lambda: "could not be read to its end" in refusal(cluster), 60)

    backend = KafkaBackend(HerderConfig(cluster.kafka, cluster.group, "w2", "http://w2", cluster.names))
    backend.open()
    backend.claim().close()

    with closing(KafkaCompactedLog(cluster.kafka, cluster.names.configs, client_id="after")) as configs:
        assert "connector/of-a-predecessor" not in [record.key for record in configs.read_to_end(30.0)]


@pytest.mark.long
def test_a_transaction_of_somebody_else_is_let_be(kafka, cluster):
    """It may still be committed; what the task writes is behind it until then."""
    run_to(cluster, 30)
    other = Producer({**cluster.kafka, "transactional.id": "somebody else", "log_level": 2})
    other.init_transactions(30)
    other.begin_transaction()
    other.produce(f"{cluster.prefix}.public.a", b"", b"foreign", 0)
    assert other.flush(30) == 0
    log = run_to(cluster, 60)
    assert log.count("another producer's transaction is open") == 1
    other.abort_transaction(30)
    assert_exactly_once(cluster, 60)
