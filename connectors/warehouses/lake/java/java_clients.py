"""What Java's clients of a lake may do, judged in this process while they do it: the hosts to which they connect, and the
properties and places that the server of a REST catalog sends.

Iceberg, Hadoop and drivers look names up again when they connect, and a server says what it likes. So the JVM asks here, by a
socket that only this user can open, and gets on with nothing that is not allowed.
"""

from __future__ import annotations

import contextlib
import functools
import ipaddress
import json
import logging
import os
import socket
import threading
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cdcworker.connectors.config import allowed_hosts
from cdcworker.connectors.scratch_folder import TemporaryFolder
from cdcworker.connectors.sink_errors import GATEWAY
from cdcworker.connectors.warehouses.lake.catalog.catalog_properties import admit_place, judged_properties
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.threads import SupervisedThread
from cdcworker.schemas.untrusted.json_text import parse_message

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

CATALOG: Final = "cdcworker.CheckedCatalog"
HOSTS: Final = "cdcworker.CheckedHosts"
HADOOP_FILES: Final = "org.apache.iceberg.hadoop.HadoopFileIO"
REFUSES: Final = "cdcworker refuses ["
"""Begins what Java says of a client that this process has answered with an error, whose code is next."""
QUESTION_S_MAX: Final = 10.0
_OF_FILE_CLIENTS: Final = ("io-impl", "s3.", "gcs.", "adls.", "client.", "signer.")
"""Begin the names of properties that choose and set up a client of files."""
Json = dict[str, Any]


class JavaClients:
    """Answers the questions of one JVM. Each is a JSON object, and so is the answer; `refused` in it says why not."""

    def __init__(self, roots: Sequence[str], masters: Collection[str] = (), stores: Sequence[str] = ()) -> None:
        """`roots` are the folders of this machine that are open to the connector, `masters` the hosts of Spark's cluster, to
        which its driver talks. `stores` are the places, each with a / at its end, of files that Java reaches through this process: where
        there are any, no catalog's server chooses another client of files."""
        self.roots = tuple(roots)
        self.stores = tuple(stores)
        self._masters = frozenset(masters)
        self._ended = threading.Event()
        self._refused: dict[str, str] = {}
        """A name that once led to a closed address stays closed: a server of names may give another answer each time."""
        self._told: set[str] = set()
        self._folder = TemporaryFolder()
        self.path = self._folder.path / "judge"
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(self.path))
        self._socket.listen(64)
        SupervisedThread(self._serve, name="lake-judge", restart_until=self._ended).start()

    def close(self) -> None:
        """Answers nothing any more, so that nothing is allowed."""
        self._ended.set()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._folder.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):
                connection.settimeout(QUESTION_S_MAX)
                data = b"".join(iter(functools.partial(connection.recv, 65_536), b""))
                connection.sendall(json.dumps(self._answer(data)).encode())

    def _answer(self, data: bytes) -> Json:
        try:
            return self.answer(parse_message(data))
        except CdcError as exc:
            log.warning("a client of the lake is refused code=%s error=%s", exc.code, exc.message)
            return {"refused": f"[{exc.code}] {exc.message}"}
        except (ValueError, KeyError, TypeError, AttributeError):
            return {"refused": f"[{GATEWAY}] what is not understood"}

    def answer(self, question: Json) -> Json:
        """Returns the answer to a question. CdcError with what is not allowed."""
        if "host" in question:
            self._judge_host(question["host"], int(question["port"]), question["addresses"])
        elif "properties" in question:
            sent = question["properties"]
            unused = [name for name in sent if self.stores and name.startswith(_OF_FILE_CLIENTS)]
            judged, left_out = judged_properties({name: sent[name] for name in sent.keys() - unused}, self.roots)
            self._tell([*left_out, *unused])
            return {"properties": judged}
        else:
            for place in question["places"]:
                if not place.startswith(self.stores):
                    admit_place(place, self.roots)
        return {}

    def _tell(self, left_out: Sequence[str]) -> None:
        new = sorted(set(left_out) - self._told)
        if new and len(self._told) < 100:
            self._told.update(new)
            log.info("the catalog's server sends properties that are left out names=%s", ",".join(new)[:500])

    def _judge_host(self, host: str, port: int, addresses: Sequence[str]) -> None:
        if host in self._masters:
            return
        found = [ipaddress.ip_address(text.partition("%")[0]) for text in addresses]
        if found and all(one.is_loopback for one in found) and port in own_ports():
            return
        problem = self._refused.get(host) or allowed_hosts.lake_problem(host, found)
        if problem:
            self._refused.setdefault(host, problem)
            text = f"a client of the lake connects to a host that {problem}"
            raise CdcError(allowed_hosts.NOT_ALLOWED, text, where={"host": host})


def hosts_of_master(master: str) -> list[str]:
    """Returns the hosts in `spark.master`, which the operator has allowed as it stands; none for a local one."""
    _, sign, places = master.partition("://")
    places = places.removeprefix("https://").removeprefix("http://") if sign else ""
    return [allowed_hosts.host_of(place) for place in places.split(",") if place]


def own_ports() -> set[int]:
    """Returns the ports at which this process itself listens: Spark's Java calls back to it."""
    mine = {_link(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")}
    found = set()
    for table in ("tcp", "tcp6"):
        path = Path("/proc/self/net", table)
        for line in path.read_text(encoding="ascii").splitlines()[1:] if path.exists() else ():
            parts = line.split()
            if parts[3] == "0A" and f"socket:[{parts[9]}]" in mine:
                found.add(int(parts[1].rpartition(":")[2], 16))
    return found


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


_known: weakref.WeakKeyDictionary[Any, tuple[JavaClients, Callable[[], Any]]] = weakref.WeakKeyDictionary()
"""By Spark's context, who judges and what loads the classes of its catalog: py4j knows one class of a name only."""


def check_clients(session: SparkSession, roots: Sequence[str], stores: Sequence[str] = ()) -> None:
    """Has each connection of Java's clients judged from here on, as `JavaClients` says. CdcError `spark.gateway` where that is not
    possible."""
    context: Any = session.sparkContext
    if context in _known:
        judge = _known[context][0]
        judge.roots, judge.stores = tuple(roots), tuple(stores)
        return
    judge = JavaClients(roots, hosts_of_master(str(context.master)), stores)
    try:
        loader = _compiled(context, "CheckedHosts.java", None)
        loader.loadClass(HOSTS).newInstance().install(str(judge.path))
    except Exception as exc:
        judge.close()
        raise CdcError(GATEWAY, f"the hosts of a lake cannot be judged ({type(exc).__name__})") from exc
    weakref.finalize(context, judge.close)
    _known[context] = judge, functools.cache(functools.partial(_compiled, context, "CheckedCatalog.java", loader))


@contextlib.contextmanager
def catalog_classes(session: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Lets Iceberg find the class `CATALOG`, where the settings name it, while the context lasts, in this thread."""
    if settings.get("catalog-impl") != CATALOG:
        yield
        return
    context: Any = session.sparkContext
    thread = context._jvm.java.lang.Thread.currentThread()
    before = thread.getContextClassLoader()
    thread.setContextClassLoader(_known[context][1]())
    try:
        yield
    finally:
        thread.setContextClassLoader(before)


def _compiled(context: Any, source: str, parent: Any) -> Any:
    """Returns the loader of the classes of a source file beside this one."""
    compiler = context._jvm.org.codehaus.janino.SimpleCompiler()
    if parent is not None:
        compiler.setParentClassLoader(parent)
    compiler.cook(Path(__file__).with_name(source).read_text(encoding="utf-8"))
    return compiler.getClassLoader()


def settings_of(settings: Mapping[str, str]) -> dict[str, str]:
    """Returns the settings of a catalog as Spark takes them: a REST catalog is one whose server's answers are judged."""
    out = dict(settings)
    if out.get("type") == "rest":
        del out["type"]
        out["catalog-impl"] = CATALOG
    return out
