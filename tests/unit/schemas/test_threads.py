"""Tasks of the event loop end when they are told to."""

import asyncio

import pytest
from cdcworker.schemas.threads import end_task, repeated


def test_a_task_that_lost_its_cancellation_is_cancelled_again():
    async def loses_the_first():
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.Event().wait()

    async def run():
        task = asyncio.create_task(loses_the_first())
        await asyncio.sleep(0)
        await asyncio.wait_for(end_task(task), 10)
        return task.cancelled()

    assert asyncio.run(run())


def test_whoever_waits_for_the_end_of_a_task_can_be_cancelled():
    async def never_ends():
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if over:
                    raise

    over: list[bool] = []

    async def run():
        task = asyncio.create_task(never_ends())
        await asyncio.sleep(0)
        try:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(end_task(task), 0.05)
        finally:
            over.append(True)
            await end_task(task)

    asyncio.run(run())


def test_a_step_is_repeated_as_long_as_the_context_lasts():
    async def run():
        called = asyncio.Event()
        async with repeated(called.set, 0.01, name="step"):
            for _ in range(3):
                called.clear()
                await asyncio.wait_for(called.wait(), 10)
        assert "step" not in {task.get_name() for task in asyncio.all_tasks()}

    asyncio.run(run())
