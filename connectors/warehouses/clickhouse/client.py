"""A ClickHouse server over HTTP: statements, queries and inserts, all of them in Arrow."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from cdcworker.connectors.config import allowed_hosts, server_authentication
from cdcworker.connectors.sink_errors import TARGET_UNREACHABLE, TARGET_VERSION
from cdcworker.connectors.warehouses.clickhouse.errors import OPEN_PASSWORD, from_client
from cdcworker.schemas.errors import CdcError

if TYPE_CHECKING:
    import pyarrow as pa

CONNECT_TIMEOUT_S: Final = 10
ANSWER_TIMEOUT_S: Final = 600
VERSION_MIN: Final = (23, 2)
"""The first that leaves deleted rows of a ReplacingMergeTree out of what FINAL shows."""
SYSTEM: Final = "system"
"""As a root certificate: the authorities of the machine."""
_ENCRYPTED: Final = ("require", "verify-ca", "verify-full")
_SETTINGS: Final[dict[str, Any]] = {
    # What was answered is written, and altered or deleted everywhere.
    "async_insert": 0,
    "mutations_sync": 2,
    "alter_sync": 2,
    # Nothing is left out because the same rows came before: the version of a row decides.
    "insert_deduplicate": 0,
    "max_query_size": 64 * 1024 * 1024,
    "output_format_arrow_string_as_string": 0,
    "output_format_arrow_compression_method": "none",
    "input_format_null_as_default": 0,
}


@dataclass(frozen=True, slots=True)
class ServerPlace:
    """Where a server is and who logs in there. The password is in no text of it."""

    host: str
    port: int
    user: str
    password: str = field(repr=False)
    sslmode: str = "prefer"
    sslrootcert: str | None = None

    @property
    def is_encrypted(self) -> bool:
        return self.sslmode in _ENCRYPTED

    def at(self, port: int) -> ServerPlace:
        """Returns the same place at another port."""
        return replace(self, port=port)


def quote(name: str) -> str:
    """Returns a name in SQL."""
    return "`" + name.replace("\\", "\\\\").replace("`", "\\`") + "`"


class Client:
    """The connections to one server; any thread may use it. Nothing is connected to before the first call."""

    def __init__(self, place: ServerPlace) -> None:
        self._place = place
        self._made: Any = None

    def do(self, statement: str) -> None:
        """Executes a statement."""
        with self._session() as session:
            session.command(statement)

    def ask(self, query: str) -> pa.Table:
        """Returns the rows of a query; texts are bytes."""
        from pyarrow import ipc

        with self._session() as session:
            return ipc.open_stream(session.raw_query(query, fmt="ArrowStream")).read_all()

    def stream(self, query: str) -> Iterator[pa.RecordBatch]:
        """Returns the rows of a query as they come."""
        from pyarrow import ipc

        with self._session() as session, contextlib.closing(session.raw_stream(query, fmt="ArrowStream")) as answer:
            yield from ipc.open_stream(answer)

    def insert(self, table: str, rows: pa.Table) -> None:
        """Appends rows to a table, named in SQL, in one step; readers see all or nothing of them where they make one part."""
        import pyarrow as pa
        from pyarrow import ipc

        if not rows.num_rows:
            return
        out = pa.BufferOutputStream()
        with ipc.new_stream(out, rows.schema) as stream:
            stream.write_table(rows)
        block = {"max_insert_block_size": max(1_048_576, rows.num_rows)}
        with self._session() as session:
            # Names go in quoted: the client takes one that begins and ends with a quote for one that is.
            names = [quote(name) for name in rows.column_names]
            session.raw_insert(table, names, out.getvalue().to_pybytes(), settings=block, fmt="ArrowStream")

    def close(self) -> None:
        made, self._made = self._made, None
        if made is not None:
            with contextlib.suppress(Exception):
                made.close()

    @contextlib.contextmanager
    def _session(self) -> Iterator[Any]:
        from clickhouse_connect.driver.exceptions import Error
        from urllib3.exceptions import HTTPError

        try:
            if self._made is None:
                self._made = _connected(self._place)
            yield self._made
        except (Error, HTTPError, OSError) as exc:
            raise from_client(exc) from exc


def _connected(place: ServerPlace) -> Any:
    """Returns the driver's client. CdcError where no server is reached, or the password would travel in clear."""
    import clickhouse_connect

    verified = place.sslmode in server_authentication.VERIFIED
    if place.password and not verified and not server_authentication.passwords_are_open():
        raise CdcError(OPEN_PASSWORD, "warehouse.sslmode does not verify the server")
    made = clickhouse_connect.get_client(
        host=_address(place.host),
        port=place.port,
        username=place.user,
        password=place.password,
        interface="https" if place.is_encrypted else "http",
        verify=verified,
        pool_mgr=_connections(place, verified),
        server_host_name=place.host if place.is_encrypted else None,
        connect_timeout=CONNECT_TIMEOUT_S,
        send_receive_timeout=ANSWER_TIMEOUT_S,
        autogenerate_session_id=False,
        compress=False,
        query_limit=0,
        client_name="cdcworker-sink",
    )
    version = tuple(int(part) for part in made.server_version.split(".")[:2])
    if version < VERSION_MIN:
        made.close()
        raise CdcError(TARGET_VERSION, "the warehouse's server is older than ClickHouse 23.2")
    for name, value in _SETTINGS.items():
        made.set_client_setting(name, value)
    return made


def _connections(place: ServerPlace, verified: bool) -> Any:
    """Returns what connects to the server alone: no answer that points elsewhere is followed, and no proxy of the environment's is used."""
    from clickhouse_connect.driver.httputil import get_pool_manager_options
    from urllib3 import PoolManager

    class OneServer(PoolManager):
        def urlopen(self, *args: Any, **more: Any) -> Any:
            return super().urlopen(*args, **{**more, "redirect": False})

    authorities = None if place.sslrootcert in (None, "", SYSTEM) else place.sslrootcert
    options = get_pool_manager_options(ca_cert=authorities, verify=verified)
    if place.is_encrypted:
        options |= {"server_hostname": place.host} | ({"assert_hostname": place.host} if verified else {})
    return OneServer(**options)


def _address(host: str) -> str:
    """Returns the address that this worker lets connectors reach: the name is not looked up again."""
    try:
        return next(iter(allowed_hosts.addresses(host, "warehouse.hostname")))
    except (allowed_hosts.UnknownHost, StopIteration):
        raise CdcError(TARGET_UNREACHABLE, "the name of the host leads to no address", where={"host": host}) from None
