from cdcworker.connectors.transforms.bounded_cache import BoundedCache


def test_the_oldest_goes_when_one_more_comes():
    cache = BoundedCache(2)
    cache["a"], cache["b"] = 1, 2
    cache["c"] = 3
    assert cache == {"b": 2, "c": 3}


def test_what_is_put_again_makes_nothing_go():
    cache = BoundedCache(2)
    cache["a"], cache["b"] = 1, 2
    cache["a"] = 3
    assert cache == {"a": 3, "b": 2}
