import threading

from cdcworker.connectors.sink_engine.stage_thread import StageThread


def test_items_are_worked_on_in_order_and_never_two_at_once():
    done, inside, most = [], [], []

    def work(item):
        inside.append(item)
        most.append(len(inside))
        done.append(item)
        inside.remove(item)

    handover = StageThread(work)
    assert all(handover.give(number) for number in range(50))
    assert handover.wait(30)
    assert done == list(range(50))
    assert max(most) == 1


def test_the_giver_goes_on_while_an_item_is_worked_on():
    go = threading.Event()
    handover = StageThread(lambda _: go.wait(30))
    assert handover.give(1)
    assert handover.busy
    assert not handover.wait(0.0)
    go.set()
    assert handover.wait(30)
    assert not handover.busy


def test_after_a_failure_nothing_more_is_taken_until_it_begins_anew():
    seen = []

    def work(item):
        seen.append(item)
        if item == 2:
            raise ValueError("no")

    handover = StageThread(work)
    assert handover.give(1)
    assert handover.give(2)
    assert not handover.give(3)
    assert isinstance(handover.error, ValueError)
    handover.reset()
    assert handover.error is None
    assert handover.give(4)
    assert handover.wait(30)
    assert seen == [1, 2, 4]
