"""Messages of open transactions on local disk, within a bound: one file per transaction, gone with it."""

from __future__ import annotations

import shutil
import struct
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import IO
from urllib.parse import quote

from cdcworker.connectors.capture.errors import CaptureErrors
from cdcworker.connectors.scratch_folder import open_private, private_folder
from cdcworker.schemas.errors import CdcError

WRITE_BYTES = 1 << 20
READ_BYTES = 1 << 20
_HEAD = struct.Struct(">II")
"""Bytes that follow it in the record after the sub-transaction's id, and that id."""
_PAGE_BITS = 12


class NotStreamable(Exception):
    """A transaction has to come in one piece, at its end: there is no room for it, or it could not be told right."""

    def __init__(self, reason: str, xid: int) -> None:
        super().__init__(reason)
        self.xid = xid


class XidSet:
    """Transaction ids as bits in pages: those of one transaction's sub-transactions lie near each other."""

    def __init__(self) -> None:
        self._pages: dict[int, bytearray] = {}

    def add(self, xid: int) -> None:
        page = self._pages.setdefault(xid >> _PAGE_BITS, bytearray(1 << (_PAGE_BITS - 3)))
        bit = xid & ((1 << _PAGE_BITS) - 1)
        page[bit >> 3] |= 1 << (bit & 7)

    def __contains__(self, xid: int) -> bool:
        page = self._pages.get(xid >> _PAGE_BITS)
        bit = xid & ((1 << _PAGE_BITS) - 1)
        return page is not None and bool(page[bit >> 3] & (1 << (bit & 7)))

    def __bool__(self) -> bool:
        return bool(self._pages)


@dataclass(slots=True)
class SpooledTransaction:
    """One open transaction."""

    path: Path
    bytes: int = 0
    messages: int = 0
    aborted: XidSet = field(default_factory=XidSet)
    has_notes: bool = False
    """It holds logical messages, of which the server does not say in which sub-transaction they were written."""
    relations: list[tuple[int, int, int]] = field(default_factory=list)
    """(sub-transaction, table's number, arrival) of the tables that it describes."""


class TransactionSpool:
    """Files of one session, in a folder of its own. What an earlier one of the task has left is removed."""

    def __init__(self, state_dir: str, name: str, bytes_max: int, errors: CaptureErrors) -> None:
        own = uuid.uuid4().hex
        if state_dir:
            home = Path(state_dir) / "spool" / quote(name, safe="")
            shutil.rmtree(home, ignore_errors=True)
            self._folder = home / own
        else:
            self._folder = Path(tempfile.gettempdir()) / f"cdcworker-spool-{own}"
        self._bytes_max = bytes_max
        self._errors = errors
        self._held: dict[int, SpooledTransaction] = {}
        self._parts: list[bytes] = []
        self._parts_bytes = 0
        self._xid = 0
        self.bytes = 0
        """Of all transactions that are held."""

    def __len__(self) -> int:
        return len(self._held)

    def get(self, xid: int) -> SpooledTransaction | None:
        return self._held.get(xid)

    def open(self, xid: int) -> SpooledTransaction:
        """Opens a transaction: what is added from now on belongs to it."""
        self._xid = xid
        held = self._held.get(xid)
        if held is None:
            held = self._held[xid] = SpooledTransaction(self._folder / str(xid))
        return held

    def add(self, sub: int, position: bytes, message: bytes) -> None:
        """Adds one message of the sub-transaction `sub`; `position` are the 8 bytes of where it stands in the log."""
        self._parts += (_HEAD.pack(len(message) + 8, sub), position, message)
        self._parts_bytes += len(message) + 16
        self._held[self._xid].messages += 1
        if self._parts_bytes >= WRITE_BYTES:
            self.write()

    def write(self) -> None:
        """Writes what was added to its file. NotAhead leaves the transaction incomplete: it must not be read."""
        parts, size = self._parts, self._parts_bytes
        self._parts, self._parts_bytes = [], 0
        if not parts:
            return
        if self.bytes + size > self._bytes_max:
            raise NotStreamable(f"{self.bytes + size} bytes of open transactions", self._largest())
        held = self._held[self._xid]
        try:
            private_folder(self._folder)
            with open(held.path, "ab", buffering=0, opener=open_private) as file:
                view = memoryview(b"".join(parts))
                while view:
                    view = view[file.write(view) :]
        except OSError as exc:
            raise NotStreamable(f"the disk refuses it: {exc.strerror}", self._largest()) from exc
        held.bytes += size
        self.bytes += size

    def _largest(self) -> int:
        return max(self._held, key=lambda xid: self._held[xid].bytes)

    def messages(self, xid: int) -> Iterator[tuple[bytes, bytes]]:
        """Yields (position, message) in the order of arrival; those of aborted sub-transactions are left out. CdcError when
        the files do not hold what was written."""
        held = self._held[xid]
        aborted, number, found = held.aborted, int.from_bytes, 0
        with self._reading(held) as file:
            rest, want = b"", READ_BYTES
            while block := file.read(want):
                block = rest + block
                p, end, want = 0, len(block), READ_BYTES
                while end - p >= 8:
                    stop = p + 8 + number(block[p : p + 4], "big")
                    if stop > end:
                        want = max(want, stop - end)
                        break
                    sub = number(block[p + 4 : p + 8], "big")
                    found += 1
                    if not (aborted and sub in aborted):
                        yield block[p + 8 : p + 16], block[p + 16 : stop]
                    p = stop
                rest = block[p:]
        if found != held.messages or rest:
            where: dict[str, str | int] = {"messages": held.messages, "found": found}
            raise CdcError(self._errors.spool, "an open transaction is not in the spool as it was written", where=where)

    def _reading(self, held: SpooledTransaction) -> IO[bytes]:
        try:
            return held.path.open("rb", buffering=0) if held.messages else BytesIO()
        except OSError as exc:
            raise CdcError(self._errors.spool, f"the spool cannot be read: {exc.strerror}") from exc

    def drop(self, xid: int) -> None:
        held = self._held.pop(xid, None)
        if held is None:
            return
        self.bytes -= held.bytes
        held.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Nothing is kept: the server sends open transactions again from their beginning."""
        self._held, self._parts, self._parts_bytes, self.bytes = {}, [], 0, 0
        shutil.rmtree(self._folder, ignore_errors=True)
