"""Questions to a child process: whatever it leaves behind, an answer comes within its time."""

from __future__ import annotations

import sys
import threading

from cdcworker.worker.children.call import ChildAnswer, call_child

ECHO = "import sys; sys.stdout.write(sys.stdin.read())"
LEAVING = """
import os, sys, time
if os.fork() == 0:
    time.sleep(600)
print("done", flush=True)
os._exit(0)
"""


def asked(program: str, timeout_s: float) -> ChildAnswer | None:
    """None: there was no answer long after the time was over."""
    found: list[ChildAnswer] = []
    command = (sys.executable, "-I", "-c", program)
    thread = threading.Thread(target=lambda: found.append(call_child(command, {"a": 1}, timeout_s)), daemon=True)
    thread.start()
    thread.join(30)
    return found[0] if found else None


def test_what_the_child_writes_is_the_answer():
    assert asked(ECHO, 30) == ChildAnswer(b'{"a": 1}', 0)


def test_a_child_that_ends_and_leaves_another_one_with_its_pipes_is_not_waited_for():
    for timeout_s in (2, 20):
        answer = asked(LEAVING, timeout_s)
        assert answer is not None
        if answer.out:
            break  # else the machine has taken the time for the child's start
    assert answer.out == b"done\n"
