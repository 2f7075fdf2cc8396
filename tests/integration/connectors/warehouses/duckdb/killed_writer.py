"""A driver that writes to a file of DuckDB until it is killed: `killed_writer.py FILE EPOCH together|alone`. What it writes depends on the
ledger alone; it ends with 0 when all is written."""

from __future__ import annotations

import sys

from cdcworker.connectors.warehouses.duckdb.writer import DuckDbWriter

from ..mysql import killed_writer

if __name__ == "__main__":
    writer = DuckDbWriter(sys.argv[1], "sink")
    killed_writer.write(writer, int(sys.argv[2]), sys.argv[3] == "together")
