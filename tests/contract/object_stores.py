"""What every store of objects has to do, over a proxy before a real server: `open_store(**config)` gives files below a prefix of its
own by way of `proxy`. The bytes of an object are those that were put, a file is made by one writer alone, and an answer that is lost
changes nothing."""

from __future__ import annotations

import threading

import pyarrow as pa
import pytest
from cdcworker.connectors.warehouses.storage import object_store
from cdcworker.schemas.errors import CdcError
from pyarrow import parquet

from tests.s3_faults import later

WRITES = ("PUT", "POST")


def write_of(name):
    """Requests that write an object which has this in its path; a store may have it in the body, as the only one that is written."""
    return lambda method, path: method in WRITES and (name in path or "/upload/" in path)


def refused(step):
    with pytest.raises(CdcError) as caught:
        step()
    return caught.value


class Contract:
    @pytest.fixture
    def store(self, open_store):
        return open_store()

    @pytest.fixture
    def impatient(self, monkeypatch):
        from cdcworker.connectors.warehouses.storage import judged_connections, s3_client

        for module in (judged_connections, s3_client):
            monkeypatch.setattr(module, "READ_S_MAX", 2.0)
        monkeypatch.setattr(object_store, "RETRY_S_MAX", 0.0)

    def test_a_file_is_made_once(self, store):
        store.create("a/b.json", b"one")
        with pytest.raises(FileExistsError):
            store.create("a/b.json", b"two")
        assert store.read("a/b.json") == b"one"
        store.replace("a/b.json", b"three")
        assert (store.read("a/b.json"), store.size("a/b.json")) == (b"three", 5)
        store.remove(["a/b.json", "a/never"])
        assert not store.exists("a/b.json")
        for missing in (store.read, store.size, store.source):
            with pytest.raises(FileNotFoundError):
                missing("a/b.json")

    def test_of_many_who_make_a_file_one_succeeds(self, open_store):
        stores, won, barrier = [open_store("shared") for _ in range(6)], [], threading.Barrier(6)

        def make(number):
            barrier.wait()
            try:
                stores[number].create("x", str(number).encode())
            except FileExistsError:
                return
            won.append(number)

        threads = [threading.Thread(target=make, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [str(number).encode() for number in won] == [stores[0].read("x")]

    def test_a_change_that_comes_between_is_not_overwritten(self, store):
        seen = []

        def change(found):
            seen.append(found)
            if len(seen) < 3:
                store.replace("x", str(len(seen)).encode())
            return (found or b"") + b"+"

        store.update("x", change)
        assert seen == [None, b"1", b"2"]
        assert store.read("x") == b"2+"

    def test_folders_are_listed_a_page_after_the_other(self, store, monkeypatch):
        names = ["ein Name", "f%/ä", "z"]
        for number in range(3):
            store.replace(f"a/{number}.json", b"12")
            store.replace(f"b{number}/x", b"")
        for name in names:
            store.replace(f"c/{name}", b"")
        page = store._page
        monkeypatch.setattr(store, "_page", lambda prefix, more, _limit: page(prefix, more, 2))
        assert store.names("a", ".json") == ["0.json", "1.json", "2.json"]
        assert sorted(store.folders("")) == ["a", "b0", "b1", "b2", "c"]
        assert (store.folders("c"), sorted(store.names("c", ""))) == (["f%"], ["ein Name", "z"])
        (first, *_) = store.files("a", "")
        assert (first.size, abs(first.modified - store.modified("a/0.json")) <= 1) == (2, True)
        assert store.has_folder("c/f%")
        assert not store.has_folder("c/f")
        assert store.below("c").names("f%", "") == ["ä"]

    def test_what_a_file_holds_is_read_in_parts(self, store, monkeypatch):
        content = bytes(range(256)) * 20
        store.replace("x", content)
        store.replace("empty", b"")
        assert store.part("x", 10, 300) == content[10:310]
        assert (store.part("x", 5000, 300), store.part("x", 6000, 10)) == (content[5000:], b"")
        assert (store.read("empty"), store.part("empty", 0, 5)) == (b"", b"")
        rows = pa.table({"n": list(range(5000))})
        assert store.write("t.parquet", lambda sink: parquet.write_table(rows, sink)) == store.size("t.parquet")
        monkeypatch.setattr(object_store, "WHOLE_BYTES", 1000)
        assert parquet.read_table(store.source("t.parquet")).equals(rows)

    @pytest.mark.parametrize("how", ["lost", "cut", "busy"])
    def test_an_answer_that_fails_changes_nothing(self, store, proxy, how):
        """Each request of these steps fails once."""
        for at in range(6):
            before = len(proxy.requests)
            fault = proxy.plan(how, later(at), 1)
            store.create(f"{at}/a", b"1")
            store.update(f"{at}/a", lambda found: (found or b"") + b"2")
            store.replace(f"{at}/b", b"3")
            assert store.names(str(at), "") == ["a", "b"]
            store.remove([f"{at}/b"])
            proxy.faults.remove(fault)
            assert store.read(f"{at}/a") == b"12"
            assert store.names(str(at), "") == ["a"]
            assert fault.seen or len(proxy.requests) - before <= at

    def test_a_put_that_arrives_late_is_known(self, store, proxy, impatient):
        store.replace("other", b"")
        held = proxy.plan("held", write_of("late"))
        assert refused(lambda: store.create("late", b"1")).code == "spark.target_unreachable"
        assert not store.is_late("late")
        held.release.set()
        assert held.done.wait(30)
        assert store.is_late("late")
        with pytest.raises(FileExistsError):
            store.create("late", b"2")

    def test_a_store_that_keeps_to_conditions_is_taken(self, store):
        store.begin({})
        store.begin({})
        store.probe()

    def test_a_server_that_is_down_is_waited_for(self, store, proxy, monkeypatch):
        monkeypatch.setattr(object_store, "RETRY_S_MAX", 0.2)
        proxy.plan("busy", later(0), 10_000)
        error = refused(lambda: store.read("x"))
        assert (error.code, error.kind) == ("spark.target_unreachable", "transient")

    @pytest.mark.parametrize("method", ["GET", "PUT"])
    def test_an_answer_that_points_elsewhere_is_not_followed(self, store, proxy, method):
        elsewhere = f"{proxy.endpoint}/elsewhere"
        proxy.plan("moved", lambda _method, path: path != "/elsewhere", 100, elsewhere)
        step = store.probe if method == "GET" else lambda: store.replace("x", b"1")
        assert refused(step).code == "spark.target_bucket"
        assert "/elsewhere" not in [path for _, path in proxy.requests]

    def test_what_the_store_refuses_has_a_code_and_says_no_secret(self, open_store, wrong):
        for code, config in wrong.items():
            error = refused(open_store(**config).probe)
            assert (error.code, error.kind) == (code, "config")
            assert not [value for value in config.values() if value in str(error)]
