"""The Spark sink: one Structured Streaming query per task, exactly once by the target's ledger."""
