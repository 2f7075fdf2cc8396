"""Threads and lasting tasks of the event loop are made at one place, where a death is noticed: one that nobody watches
dies silently."""

from __future__ import annotations

import ast

from .parsed_code import nodes
from .test_dangerous import name_of

PLACE = "schemas/threads.py"
THREADS = frozenset(
    {"threading.Thread", "Thread", "threading.Timer", "Timer", "ThreadPoolExecutor", "futures.ThreadPoolExecutor"}
    | {"concurrent.futures.ThreadPoolExecutor", "_thread.start_new_thread", "ThreadPool", "pool.ThreadPool"}
)
TASKS = frozenset({"asyncio.create_task", "create_task", "loop.create_task", "asyncio.TaskGroup", "TaskGroup"})


def _is_bare(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return name_of(node.func) in THREADS | TASKS
    return isinstance(node, ast.ClassDef) and any(name_of(base) in THREADS for base in node.bases)


def test_threads_are_supervised() -> None:
    found = nodes(ast.Call, ast.ClassDef)
    assert [f"{place}:{node.lineno}" for place, node in found if place != PLACE and _is_bare(node)] == []


def test_a_bare_thread_would_be_found() -> None:
    text = (
        "import threading\nthreading.Thread(target=print)\nclass T(threading.Thread): ...\nasyncio.create_task(x())\n"
    )
    assert sum(_is_bare(node) for node in ast.walk(ast.parse(text))) == 3
