"""Sinks without Spark, beside bare clients that post the same rows to the same server in the same run.

Three contenders, in turn, each round: a real task of the sink; a client that has the rows in memory, makes JSON of them and posts it;
and one that reads and decodes them from Kafka too. All post batches of the same size over one connection per partition. The
server counts events, and a round in which one is missing fails.

Then records come at an even rate, for the sink and for a bare process that reads, decodes and posts them: how long it takes from the time at which the
broker has a record until the server has read the request, and how much memory the sink's process has. The last line is one
JSON object.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import multiprocessing
import statistics
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from cdcworker.schemas.decode import RecordDecoder
from cdcworker.schemas.log import SchemaLog
from cdcworker.worker.devstack.kafka import EmbeddedKafka
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from tests.change_streams import ID, column, table
from tests.record_sinks import TaskProcess, Topics

from . import record_sinks_jdbc, record_sinks_kafka
from .measure import finish, wait

BATCH: Final = 500
PARTITIONS: Final = 4
WARM: Final = 500
"""Records before those whose time is taken."""
ROW = table(ID, column("n", "int", "integer"), column("a", "string", "text"), column("d", "double", "double"))


def serve(pipe: Any) -> None:
    """A process that answers each request with 204. It tells its port, and when asked how many events came and how late they were."""
    seen, lock, late = [0], threading.Lock(), list[float]()
    timed = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(204)
            self.end_headers()
            if timed.is_set():
                now = time.time() * 1000
                late.extend(now - event["timestamp"] for event in json.loads(body))
            with lock:
                seen[0] += body.count(b'"before":')

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    pipe.send(server.server_address[1])
    while (asked := pipe.recv()) != "end":
        if asked == "timed":
            timed.set()
        pipe.send((seen[0], list(late)))


class Server:
    def __init__(self) -> None:
        self._pipe, other = multiprocessing.Pipe()
        self._process = multiprocessing.get_context("spawn").Process(target=serve, args=(other,), daemon=True)
        self._process.start()
        self.port = self._pipe.recv()

    def seen(self) -> int:
        return int(self._asked("seen")[0])

    def late(self) -> list[float]:
        return list(self._asked("seen")[1])

    def time(self) -> None:
        self._asked("timed")

    def _asked(self, what: str) -> Any:
        self._pipe.send(what)
        return self._pipe.recv()

    def close(self) -> None:
        self._pipe.send("end")
        self._process.join(5)


def post_all(port: int, lanes: list[list[Any]], row: Any) -> float:
    """Posts rows in batches, each list over a connection of its own; returns the seconds."""

    def lane(rows: list[Any]) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        for at in range(0, len(rows), BATCH):
            body = json.dumps([row(each) for each in rows[at : at + BATCH]], separators=(",", ":")).encode()
            connection.request("POST", "/hook", body, {"Content-Type": "application/json"})
            connection.getresponse().read()
        connection.close()

    began = time.monotonic()
    threads = [threading.Thread(target=lane, args=(rows,)) for rows in lanes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.monotonic() - began


def read_all(topics: Topics, count: int) -> list[list[Any]]:
    """The values of the topic as Kafka has them, by partition."""
    consumer = Consumer(
        {"bootstrap.servers": topics.kafka.bootstrap, "group.id": "bare", "isolation.level": "read_committed"}
    )
    consumer.assign([TopicPartition(topics.topic, number, OFFSET_BEGINNING) for number in range(PARTITIONS)])
    lanes: list[list[Any]] = [[] for _ in range(PARTITIONS)]
    left = count
    while left:
        for message in consumer.consume(min(left, 1000), 0.5):
            lanes[message.partition()].append(message.value())
            left -= 1
    consumer.close()
    return lanes


def sink_s(topics: Topics, server: Server, count: int, folder: Path, name: str) -> tuple[float, float]:
    """The seconds of a task from its first event to its last, and its memory in MB."""
    config = {
        "connector.class": "http-sink",
        "http.url": f"http://127.0.0.1:{server.port}/hook",
        "batch.max.size": str(BATCH),
    }
    before = server.seen()
    task = TaskProcess(topics, config, (1, 0), folder, name=name)
    try:
        wait("the first event", lambda: server.seen() > before, 60, 0.005)
        began, already = time.monotonic(), server.seen() - before
        wait("all events", lambda: server.seen() - before >= count, 300, 0.005)
        seconds = (time.monotonic() - began) * count / (count - already)
        wait("a report of it all", lambda: task.numbers.get("changes", 0) >= count, 30)
        task.stop()
    finally:
        task.kill()
    if server.seen() - before != count:
        sys.exit(f"{server.seen() - before} events came, not {count}")
    return seconds, max(one["rss_mb"] for one in task.reports)


def follow(bootstrap: str, topic: str, schemas: list[Any], port: int) -> None:
    """A process that posts what comes into a topic as soon as it comes, by nothing but the libraries."""
    log = SchemaLog((record.key, record.value) for record in schemas)
    decoder = RecordDecoder(log)
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "bare", "isolation.level": "read_committed"})
    consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(PARTITIONS)])
    connection = http.client.HTTPConnection("127.0.0.1", port)
    while True:
        first = consumer.poll(0.1)
        found = [] if first is None else [first, *consumer.consume(BATCH - 1, 0)]
        events = [
            {"timestamp": one.timestamp()[1], "value": decoder.decode(one.value())} for one in found if not one.error()
        ]
        if events:
            body = json.dumps(events, separators=(",", ":")).encode()
            connection.request("POST", "/hook", body, {"Content-Type": "application/json"})
            connection.getresponse().read()


def visible_ms(kafka: Any, options: argparse.Namespace, folder: Path, *, bare: bool) -> tuple[list[float], float]:
    """How late each record was at an even rate, in ms in rising order, and the memory of the task in MB."""
    server, rate = Server(), options.rate
    topics = Topics(kafka, PARTITIONS, message_timestamp_type="LogAppendTime")
    for number in range(int(rate * options.seconds) + WARM):
        topics.stream.insert(ROW, (number, number, "x" * 20, 0.5))
    records = list(topics.stream.records)
    topics.forget()
    topics.flush()
    with contextlib.ExitStack() as stack:
        stack.callback(server.close)
        if bare:
            arguments = (kafka.bootstrap, topics.topic, topics.stream.schemas.records, server.port)
            follower = multiprocessing.get_context("spawn").Process(target=follow, args=arguments, daemon=True)
            follower.start()
            stack.callback(follower.kill)
        else:
            config = {"connector.class": "http-sink", "http.url": f"http://127.0.0.1:{server.port}/hook"}
            task = TaskProcess(topics, config, (1, 0), folder)
            stack.callback(task.kill)
        producer = Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 5})
        paced(producer, records[:WARM], rate)
        wait("the first events", lambda: server.seen() >= WARM, 60)
        server.time()
        paced(producer, records[WARM:], rate)
        wait("the last event", lambda: server.seen() >= len(records), 60)
        rss = 0.0 if bare else max(one["rss_mb"] for one in task.reports)
        return sorted(server.late()), rss


def paced(producer: Any, records: list[Any], rate: int) -> None:
    """Writes records at an even rate."""
    began = time.monotonic()
    for number, record in enumerate(records):
        left = began + number / rate - time.monotonic()
        if left > 0:
            time.sleep(left)
        producer.produce(record["topic"], record["value"], record["key"], record["partition"])
        producer.poll(0)
    producer.flush(30)


def fill(kafka: Any, rows: int) -> Topics:
    topics = Topics(kafka, PARTITIONS)
    for first in range(0, rows, 10_000):
        for number in range(first, min(rows, first + 10_000)):
            topics.stream.insert(ROW, (number, number * 7, f"row {number} of the benchmark", number / 3))
        topics.flush()
        topics.forget()
    return topics


def measured(kafka: Any, options: argparse.Namespace, folder: Path) -> dict[str, float]:
    server, rows = Server(), options.rows
    rounds: list[SimpleNamespace] = []
    topics = fill(kafka, rows)
    decoder = RecordDecoder(topics.stream.schemas.log)
    for number in range(options.rounds):
        began = time.monotonic()
        raw = read_all(topics, rows)
        decoded = [[decoder.decode(value) for value in lane] for lane in raw]
        read_s = time.monotonic() - began
        bare_s = post_all(server.port, decoded, lambda row: row)
        # Another sink has a group of its own, and begins from the beginning.
        seconds, rss = sink_s(topics, server, rows, folder, f"{topics.name}-{number}")
        rounds.append(
            SimpleNamespace(sink=rows / seconds, bare=rows / bare_s, reader=rows / (bare_s + read_s), rss=rss)
        )
        print(
            f"round {number + 1}: sink {rows / seconds:,.0f}/s, client {rows / bare_s:,.0f}/s, with reading {rounds[-1].reader:,.0f}/s"
        )
    server.close()
    late, rss = visible_ms(kafka, options, folder, bare=False)
    bare, _ = visible_ms(kafka, options, folder, bare=True)
    median = statistics.median
    return {
        "http_changes_per_s": round(median(one.sink for one in rounds)),
        "http_bare_client_changes_per_s": round(median(one.bare for one in rounds)),
        "http_vs_bare_client_ratio": round(median(one.sink / one.bare for one in rounds), 3),
        "http_vs_bare_reader_ratio": round(median(one.sink / one.reader for one in rounds), 3),
        **{f"http_visible_p{share}_ms": percentile(late, share) for share in (50, 99)},
        **{f"http_bare_visible_p{share}_ms": percentile(bare, share) for share in (50, 99)},
        "http_rss_mb": round(max(rss, *(one.rss for one in rounds)), 1),
    }


def percentile(rising: list[float], share: int) -> float:
    return round(rising[min(len(rising) - 1, len(rising) * share // 100)], 1)


def into_postgres(kafka: Any, options: argparse.Namespace, folder: Path) -> dict[str, float]:
    shared = SimpleNamespace(fill=fill, read_all=read_all, paced=paced, percentile=percentile, row=ROW)
    return record_sinks_jdbc.measured(kafka, options, folder, shared)


def into_kafka(kafka: Any, options: argparse.Namespace, folder: Path) -> dict[str, float]:
    shared = SimpleNamespace(fill=fill, paced=paced, percentile=percentile, row=ROW)
    return record_sinks_kafka.measured(kafka, options, folder, shared)


PARTS: Final = {"http": measured, "jdbc": into_postgres, "kafka": into_kafka}


def main() -> None:
    from . import queue_sinks

    names = [*PARTS, *queue_sinks.SERVERS]
    parser = argparse.ArgumentParser(prog="make bench-light", description="Sinks without Spark beside bare clients.")
    parser.add_argument("--rows", type=int, default=60_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rate", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--targets", nargs="+", choices=names, default=names)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-light-") as folder:
        kafka = EmbeddedKafka(Path(folder) / "kafka")
        kafka.start()
        try:
            found = {
                name: part(kafka, options, Path(folder)) for name, part in PARTS.items() if name in options.targets
            }
            figures = {name: number for numbers in found.values() for name, number in numbers.items()}
            finish({**figures, **queue_sinks.all_measured(kafka, options, Path(folder))})
        finally:
            kafka.remove()


if __name__ == "__main__":
    main()
