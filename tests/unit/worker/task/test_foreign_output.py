"""What Java writes to the log of a task's process: nothing that was resolved for the task."""

from __future__ import annotations

import os
import subprocess
import sys

from cdcworker.worker.protocol.task_spec import ClusterTopics, TaskSpec

RUN = """
import logging, os, subprocess, sys
from cdcworker.worker.logs import redaction
from cdcworker.worker.logs.setup import set_up
from cdcworker.worker.task.foreign_output import cleaned_output

set_up("INFO", "text")
with cleaned_output():
    # Java may be started, as by a standby, before anything is known.
    child = subprocess.Popen(["sh", "-c", "read line; echo \\"WARN url=jdbc:x?password=$line\\" >&2; printf 'no end ' >&2"],
                             stdin=subprocess.PIPE, stdout=2)
    redaction.remember_references({"s3cr3t-value": "${file:/run/secrets/a}"})
    logging.getLogger("own").info("a line of our own s3cr3t-value")
    child.communicate(b"s3cr3t-value")
    os.write(2, b"\\xff print of a library s3cr3t-value\\n")
    os.write(2, b"x" * 200_000 + b" s3cr3t-value\\n")
    os.write(2, b"torn s3cr3t-value")
os.write(2, b"\\nafterwards\\n")
logging.shutdown()
os._exit(0)
"""


def test_a_line_of_foreign_code_holds_nothing_that_was_resolved() -> None:
    done = subprocess.run([sys.executable, "-c", RUN], capture_output=True, timeout=60, check=True, env={**os.environ})
    text = done.stderr.decode(errors="replace")
    assert "s3cr3t-value" not in text
    assert "WARN url=jdbc:x?password=${file:/run/secrets/a}" in text
    assert "a line of our own ${file:/run/secrets/a}" in text
    assert "print of a library ${file:/run/secrets/a}" in text
    assert "torn ${file:/run/secrets/a}" in text
    assert text.count("x") > 200_000
    assert text.rstrip().endswith("afterwards")


TASK = """
import os, sys
from cdcworker.worker.logs import redaction
from cdcworker.worker.task import main

def perform(spec, stdin, reporter):
    redaction.remember_references({"s3cr3t-value": "${env:CDC_SECRET_A}"})
    os.system("echo WARN s3cr3t-value >&2")
    return 0

main._perform = perform
code = main.main()
os._exit(code)
"""


def test_the_process_of_a_sinks_task_cleans_it() -> None:
    spec = TaskSpec(
        kind="sink", connector="c", task=0, incarnation="i", task_epoch=1, attempt=0, worker_id="w", boot_id="b",
        paused=False, config={}, kafka={}, group_id="g", topics=ClusterTopics("a", "b", "c", "d"), offsets_partitions=1,
        session_timeout_s=10.0, state_dir="",
    )  # fmt: skip
    child = subprocess.Popen(
        [sys.executable, "-c", TASK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip
    try:
        _, told = child.communicate(spec.to_line(), 60)
    finally:
        child.kill()
    assert b"s3cr3t-value" not in told
    assert b"WARN ${env:CDC_SECRET_A}" in told
