"""Sinks into queues and stores, beside bare clients that write the same rows to the same server in the same run.

Of each there are, in turn, each round: a real task of the sink; a client that has the rows in memory, makes JSON of them and writes it; and one
that reads and decodes them from Kafka too. The server counts what it has, and a round in which one is missing fails. Then records come at an
even rate: how long it takes from the time at which the broker has a record until the server has it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import json
import statistics
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

from cdcworker.schemas.decode import RecordDecoder
from confluent_kafka import Producer

from tests.record_sinks import TaskProcess, Topics

from . import record_sinks as shared
from .measure import wait


class Server(Protocol):
    """A real server with an empty place that one sink or client fills."""

    def config(self, place: str) -> Mapping[str, str]:
        """The config of a sink that writes there."""

    def count(self, place: str) -> int:
        """How many records the place has."""

    def write(self, place: str, rows: list[Any]) -> None:
        """Writes rows as JSON, in batches, over a connection of its own."""

    def late(self, place: str, skipped: int) -> list[float]:
        """How much later than in Kafka each record was there, in ms, but for the first ones."""


def write_all(server: Server, place: str, lanes: list[list[Any]]) -> float:
    """Writes each list over a connection of its own; returns the seconds."""
    began = time.monotonic()
    threads = [threading.Thread(target=server.write, args=(place, rows)) for rows in lanes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.monotonic() - began


def sink_s(topics: Topics, server: Server, count: int, folder: Path) -> tuple[float, float]:
    """The seconds of a task from its first record to its last, and its memory in MB."""
    place = f"p{uuid.uuid4().hex[:8]}"
    config = {**server.config(place), "batch.max.size": str(shared.BATCH)}
    task = TaskProcess(topics, config, (1, 0), folder, name=place)
    try:
        wait("the first record", lambda: server.count(place), 60, 0.005)
        began, already = time.monotonic(), server.count(place)
        wait("all records", lambda: server.count(place) >= count, 300, 0.005)
        seconds = (time.monotonic() - began) * count / (count - already)
        wait("a report of it all", lambda: task.numbers.get("changes", 0) >= count, 30)
        task.stop()
    finally:
        task.kill()
    if server.count(place) != count:
        sys.exit(f"{server.count(place)} records are there, not {count}")
    return seconds, max(one["rss_mb"] for one in task.reports)


def visible_ms(kafka: Any, server: Server, options: argparse.Namespace, folder: Path) -> tuple[list[float], float]:
    """How late each record was at an even rate, in ms in rising order, and the memory of the task in MB."""
    topics = Topics(kafka, shared.PARTITIONS, message_timestamp_type="LogAppendTime")
    for number in range(int(options.rate * options.seconds) + shared.WARM):
        topics.stream.insert(shared.ROW, (number, number, "x" * 20, 0.5))
    records = list(topics.stream.records)
    topics.forget()
    topics.flush()
    place = f"p{uuid.uuid4().hex[:8]}"
    with contextlib.ExitStack() as stack:
        task = TaskProcess(topics, server.config(place), (1, 0), folder)
        stack.callback(task.kill)
        producer = Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 5})
        shared.paced(producer, records[: shared.WARM], options.rate)
        wait("the first records", lambda: server.count(place) >= shared.WARM, 60)
        shared.paced(producer, records[shared.WARM :], options.rate)
        wait("the last record", lambda: server.count(place) >= len(records), 60)
        return sorted(server.late(place, shared.WARM)), max(one["rss_mb"] for one in task.reports)


def measured(
    name: str, server: Server, kafka: Any, topics: Topics, options: argparse.Namespace, folder: Path
) -> dict[str, float]:
    """Returns the figures of one target, each of which begins with its name."""
    rows, rounds = options.rows, list[SimpleNamespace]()
    decoder = RecordDecoder(topics.stream.schemas.log)
    for number in range(options.rounds):
        began = time.monotonic()
        decoded = [[decoder.decode(value) for value in lane] for lane in shared.read_all(topics, rows)]
        read_s = time.monotonic() - began
        place = f"p{uuid.uuid4().hex[:8]}"
        bare_s = write_all(server, place, decoded)
        if server.count(place) != rows:
            sys.exit(f"{server.count(place)} records of the client are there, not {rows}")
        seconds, rss = sink_s(topics, server, rows, folder)
        rounds.append(
            SimpleNamespace(sink=rows / seconds, bare=rows / bare_s, reader=rows / (bare_s + read_s), rss=rss)
        )
        one = rounds[-1]
        print(
            f"{name} {number + 1}: sink {one.sink:,.0f}/s, client {one.bare:,.0f}/s, with reading {one.reader:,.0f}/s"
        )
    late, rss = visible_ms(kafka, server, options, folder)
    median = statistics.median
    return {
        f"{name}_changes_per_s": round(median(one.sink for one in rounds)),
        f"{name}_bare_client_changes_per_s": round(median(one.bare for one in rounds)),
        f"{name}_vs_bare_client_ratio": round(median(one.sink / one.bare for one in rounds), 3),
        f"{name}_vs_bare_reader_ratio": round(median(one.sink / one.reader for one in rounds), 3),
        **{f"{name}_visible_p{share}_ms": shared.percentile(late, share) for share in (50, 99)},
        f"{name}_rss_mb": round(max(rss, *(one.rss for one in rounds)), 1),
    }


def batches(rows: list[Any]) -> Iterator[list[str]]:
    for at in range(0, len(rows), shared.BATCH):
        yield [json.dumps(row, separators=(",", ":")) for row in rows[at : at + shared.BATCH]]


class InRedis:
    """Streams of Redis."""

    def __init__(self, server: Any) -> None:
        self._server = server

    def config(self, place: str) -> Mapping[str, str]:
        return self._server.config(key_template=place)

    def count(self, place: str) -> int:
        return int(self._server.client.xlen(place))

    def write(self, place: str, rows: list[Any]) -> None:
        import redis

        from tests.queue_servers.redis_server import PASSWORD

        client = redis.Redis(port=self._server.port, password=PASSWORD, protocol=2)
        for texts in batches(rows):
            pipe = client.pipeline(transaction=False)
            for text in texts:
                pipe.xadd(place, {"value": text})
            pipe.execute()
        client.close()

    def late(self, place: str, skipped: int) -> list[float]:
        entries = self._server.client.xrange(place)[skipped:]
        return [int(id.partition("-")[0]) - int(entry["timestamp"]) for id, entry in entries]


@contextlib.contextmanager
def redis_server(folder: Path) -> Iterator[Server]:
    from tests.queue_servers.redis_server import RedisServer, find_program

    program = find_program()
    if program is None:
        raise FileNotFoundError
    with RedisServer(program, folder) as server:
        # A bare client and a sink wait for the same disk otherwise, and for nothing else.
        server.client.config_set("appendfsync", "everysec")
        yield InRedis(server)


class InNats:
    """Streams of JetStream."""

    def __init__(self, server: Any) -> None:
        self._server = server

    def config(self, place: str) -> Mapping[str, str]:
        return self._server.config(place)

    def count(self, place: str) -> int:
        return int(self._server.count(place))

    def write(self, place: str, rows: list[Any]) -> None:
        from nats.js.errors import BadRequestError

        async def written(client: Any) -> None:
            stream = client.jetstream(publish_async_max_pending=256)
            # Another lane may have made it.
            with contextlib.suppress(BadRequestError):
                await stream.add_stream(name=place, subjects=[f"{place}.>"])
            for texts in batches(rows):
                waiting = [await stream.publish_async(f"{place}.rows", text.encode()) for text in texts]
                await asyncio.gather(*waiting)

        self._server.call(written)

    def late(self, place: str, skipped: int) -> list[float]:
        found = self._server.messages(place)[skipped:]
        return [one.metadata.timestamp.timestamp() * 1000 - json.loads(one.data)["timestamp"] for one in found]


@contextlib.contextmanager
def nats_server(folder: Path) -> Iterator[Server]:
    from cdcworker.worker.devstack.nats import find_program

    from tests.queue_servers.nats_server import NatsServer

    program = find_program()
    if program is None:
        raise FileNotFoundError
    with NatsServer(program, folder, syncs=False) as server:
        yield InNats(server)


class InFiles:
    """Files below prefixes of a bucket, which are looked at where the server has them: in a folder."""

    def __init__(self, server: Any, bucket: Path) -> None:
        self._server, self._bucket = server, bucket
        self._lines: dict[Path, int] = {}

    def config(self, place: str) -> Mapping[str, str]:
        from tests.s3_server import ACCESS_KEY, BUCKET, SECRET_KEY

        return {
            "connector.class": "s3",
            "warehouse.path": f"s3://{BUCKET}/{place}",
            "warehouse.s3.endpoint": self._server.endpoint,
            "warehouse.s3.path.style.access": "true",
            "warehouse.s3.access.key": ACCESS_KEY,
            "warehouse.s3.secret.key": SECRET_KEY,
            "file.content": "event",
            "file.max.records": str(FILE_RECORDS),
            "file.max.age.ms": "2000",
        }

    def _files(self, place: str) -> list[Path]:
        return sorted(path for path in (self._bucket / place).glob("*/*/*.json") if "_cdcworker" not in path.parts)

    def count(self, place: str) -> int:
        for path in self._files(place):
            if path not in self._lines:
                self._lines[path] = path.read_bytes().count(b"\n")
        return sum(lines for path, lines in self._lines.items() if path.is_relative_to(self._bucket / place))

    def write(self, place: str, rows: list[Any]) -> None:
        files = self._server.files(place)
        for at in range(0, len(rows), FILE_RECORDS):
            texts = [json.dumps(row, separators=(",", ":")) for row in rows[at : at + FILE_RECORDS]]
            name = f"rows/{threading.get_ident()}/{at:010d}.json"
            files.create(name, "".join(f"{text}\n" for text in texts).encode())

    def late(self, place: str, skipped: int) -> list[float]:
        found = [
            path.stat().st_mtime * 1000 - json.loads(line)["timestamp"]
            for path in self._files(place)
            for line in path.read_text().split("\n")[:-1]
        ]
        return found[skipped:]


@contextlib.contextmanager
def s3_server(folder: Path) -> Iterator[Server]:
    from tests.s3_server import BUCKET, S3Server, find_program

    program = find_program()
    if program is None:
        raise FileNotFoundError
    with S3Server(program, folder) as server:
        yield InFiles(server, folder / "buckets" / BUCKET)


class InOpenSearch:
    """Indexes of events. What is stored is counted by the server's own numbers of writes: searches see it up to a second later."""

    def __init__(self, server: Any) -> None:
        self._server = server
        self._samples: dict[str, list[tuple[float, int]]] = {}
        self._ended = threading.Event()

    def config(self, place: str) -> Mapping[str, str]:
        threading.Thread(target=self._watch, args=(place, self._samples.setdefault(place, [])), daemon=True).start()
        return dict(self._server.config(key_ignore="true", index_name_template=place))

    def _watch(self, place: str, samples: list[tuple[float, int]]) -> None:
        while not self._ended.wait(WATCH_S) and place in self._samples:
            samples.append((time.time() * 1000, self.count(place)))

    def count(self, place: str) -> int:
        found = self._server.ask("GET", f"/{place}/_stats/indexing?filter_path=_all.primaries.indexing.index_total")
        return int(found["_all"]["primaries"]["indexing"]["index_total"]) if found else 0

    def write(self, place: str, rows: list[Any]) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._server.port)
        lane, now = threading.get_ident(), round(time.time() * 1000)
        for number, texts in enumerate(batches(rows)):
            events = (
                f'{{"create":{{"_id":"{lane}-{number}-{at}"}}}}\n{{"id":"{lane}-{number}-{at}","topic":"{place}","partition":0,'
                f'"offset":{number * shared.BATCH + at},"timestamp":{now},"key":{{"id":{at}}},"value":{text}}}\n'
                for at, text in enumerate(texts)
            )
            body = "".join(events)
            connection.request("POST", f"/{place}/_bulk", body.encode(), {"Content-Type": "application/x-ndjson"})
            if json.loads(connection.getresponse().read())["errors"]:
                sys.exit("the server refuses documents of the client")
        connection.close()

    def late(self, place: str, skipped: int) -> list[float]:
        samples, found = self._samples.pop(place), list[Any]()
        while page := self._server.documents(place, found[-1]["_seq_no"] + 1 if found else 0):
            found += page
        # The server numbers its writes, so the one of a number was there once so many were counted.
        at, late = 0, list[float]()
        for number, one in enumerate(found):
            while at < len(samples) - 1 and samples[at][1] <= number:
                at += 1
            late.append(samples[at][0] - one["_source"]["timestamp"])
        return late[skipped:]

    def close(self) -> None:
        self._ended.set()


@contextlib.contextmanager
def opensearch_server(folder: Path) -> Iterator[Server]:
    from cdcworker.schemas.errors import CdcError
    from cdcworker.worker.java import jars

    from tests.queue_servers.search_server import SearchServer

    try:
        jars.ensure("opensearch")
    except CdcError:
        raise FileNotFoundError from None
    with SearchServer(folder, heap="512m") as server, contextlib.closing(InOpenSearch(server)) as place:
        yield place


class InRabbitMq:
    """Queues of RabbitMQ, each behind an exchange of its own. What the newest of them has is counted all the time."""

    def __init__(self, server: Any) -> None:
        self._server = server
        self._watched = ""
        self._samples: list[tuple[float, int]] = []

    def config(self, place: str) -> Mapping[str, str]:
        self._server.make(place, place, queue_type="classic")
        self._watched, self._samples = place, []
        threading.Thread(target=self._watch, args=(place, self._samples), daemon=True).start()
        return dict(self._server.config(place))

    def _watch(self, place: str, samples: list[tuple[float, int]]) -> None:
        with self._server.channel() as channel:
            while self._watched == place:
                count = channel.queue_declare(place, passive=True).message_count
                samples.append((time.time() * 1000, count))
                time.sleep(WATCH_S)

    def count(self, place: str) -> int:
        return int(self._server.count(place))

    def write(self, place: str, rows: list[Any]) -> None:
        import amqp

        self._server.make(place, place, queue_type="classic")
        confirmed = 0

        def count(number: int, _: bool) -> None:
            nonlocal confirmed
            confirmed = max(confirmed, number)

        with self._server.channel() as channel:
            channel.confirm_select()
            channel.events["basic_ack"].add(count)
            sent = 0
            for texts in batches(rows):
                for text in texts:
                    id = f"{place}-{sent}"
                    message = amqp.Message(
                        text.encode(),
                        content_type="application/json",
                        delivery_mode=2,
                        message_id=id,
                        application_headers={"cdc-id": id},
                    )
                    channel.basic_publish(message, place, place, mandatory=True)
                    sent += 1
                while confirmed < sent:
                    channel.connection.drain_events(timeout=30)

    def late(self, place: str, skipped: int) -> list[float]:
        self._watched, at, found = "", 0, list[float]()
        for number, message in enumerate(self._server.taken(place)):
            while at < len(self._samples) - 1 and self._samples[at][1] <= number:
                at += 1
            found.append(self._samples[at][0] - json.loads(message.body)["timestamp"])
        return found[skipped:]

    def close(self) -> None:
        self._watched = ""


@contextlib.contextmanager
def rabbitmq_server(folder: Path) -> Iterator[Server]:
    from cdcworker.worker.devstack.rabbitmq import find_programs

    from tests.queue_servers.rabbitmq_server import RabbitMqServer

    programs = find_programs()
    if programs is None:
        raise FileNotFoundError
    with RabbitMqServer(programs, folder) as server, contextlib.closing(InRabbitMq(server)) as place:
        yield place


SERVERS: dict[str, Callable[[Path], contextlib.AbstractContextManager[Server]]] = {
    "nats": nats_server,
    "opensearch": opensearch_server,
    "rabbitmq": rabbitmq_server,
    "redis": redis_server,
    "s3": s3_server,
}
WATCH_S = 0.005
FILE_RECORDS = 5_000
"""Of one file, by the sink and by the client."""


def all_measured(kafka: Any, options: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Returns the figures of every target whose server is here; the others are named."""
    wanted = {name: opened for name, opened in SERVERS.items() if name in options.targets}
    if not wanted:
        return {}
    figures: dict[str, float] = {}
    topics = shared.fill(kafka, options.rows)
    for name, opened in wanted.items():
        try:
            with opened(folder / name) as server:
                figures |= measured(name, server, kafka, topics, options, folder)
        except FileNotFoundError:
            print(f"{name} is left out: its server is not here (make servers)")
    return figures
