from __future__ import annotations

import threading
import time
from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tonne.clock import Deadline
from tonne.errors import DeadlineExceeded
from tonne.testing.clock import VirtualClock
from tonne.transport.redirects import DEFAULT_LIFE_S, TARGETS_MAX, RedirectCache, life_of

NOW_S = 1_700_000_000.0  # 2023-11-14T22:13:20Z


@pytest.mark.parametrize(
    ("query", "life_s"),
    [
        ({"X-Amz-Date": "20231114T221320Z", "X-Amz-Expires": "1200", "X-Amz-Signature": "a"}, 1200.0),
        ({"X-Amz-Date": "20231114T220320Z", "X-Amz-Expires": "1200"}, 600.0),
        ({"X-Goog-Date": "20231114T221320Z", "X-Goog-Expires": "300"}, 300.0),
        ({"x-oss-date": "20231114T221320Z", "x-oss-expires": "60"}, 60.0),
        ({"Expires": "1700000090", "Signature": "x", "Key-Pair-Id": "y"}, 90.0),
        ({"se": "2023-11-14T22:14:20Z", "sig": "x"}, 60.0),
        ({"se": "2023-11-14T22:14:20.5000000Z"}, None),
        ({"q-sign-time": "1699999000;1700000030"}, 30.0),
        ({"X-Amz-Date": "20231114T200000Z", "X-Amz-Expires": "60"}, 0.0),
        ({"X-Amz-Expires": "60"}, None),
        ({"X-Amz-Date": "20231314T200000Z", "X-Amz-Expires": "60"}, None),
        ({"Expires": "never"}, None),
        ({}, None),
    ],
)
def test_the_life_of_signed_urls(query: dict[str, str], life_s: float | None) -> None:
    assert life_of(f"https://s.example.com/b/k?{urlencode(query)}", NOW_S) == life_s


@given(st.text(max_size=200))
def test_no_url_breaks_it(text: str) -> None:
    life_s = life_of("https://h/?" + text, NOW_S)
    assert life_s is None or life_s >= 0


def test_a_target_is_renewed_before_it_expires() -> None:
    clock = VirtualClock()
    cache = RedirectCache(clock, renew=True)
    for life_s, until_s in ((2.0, 1.6), (1200.0, 1170.0), (None, DEFAULT_LIFE_S - 30)):
        start_s = clock.now_s()
        cache.put("k", "u", life_s)
        clock.advance(until_s - 0.01)
        assert cache.get("k") is not None
        clock.advance(0.02)
        assert cache.get("k") is None, f"{life_s} from {start_s}"


def test_an_expired_target_is_not_kept() -> None:
    cache = RedirectCache(VirtualClock(), renew=True)
    cache.put("k", "u", 0.0)
    assert cache.get("k") is None


def test_without_renewal_a_target_stays() -> None:
    clock = VirtualClock()
    cache = RedirectCache(clock, renew=False)
    cache.put("k", "u", 2.0)
    clock.advance(1000)
    found = cache.get("k")
    assert found is not None
    assert found.url == "u"


def test_dropping_does_not_hit_a_newer_target() -> None:
    cache = RedirectCache(VirtualClock(), renew=True)
    cache.put("k", "old", 60)
    old = cache.get("k")
    assert old is not None
    cache.put("k", "new", 60)
    cache.drop("k", old)
    found = cache.get("k")
    assert found is not None
    assert found.url == "new"
    cache.drop("k", found)
    assert cache.get("k") is None


def test_the_table_is_bounded() -> None:
    cache = RedirectCache(VirtualClock(), renew=True)
    for number in range(TARGETS_MAX + 10):
        cache.put(str(number), "u", 60)
    assert cache.get("0") is None
    assert cache.get("9") is None
    assert cache.get("10") is not None


def test_only_one_asks_where_redirects_are_known() -> None:
    cache = RedirectCache(VirtualClock(), renew=True)
    cache.put("other", "u", 60)
    with cache.asking("k", Deadline(), "h/r"):
        with pytest.raises(DeadlineExceeded), cache.asking("k", Deadline.after(0.05), "h/r"):
            pytest.fail("two at once")
        with cache.asking("another blob", Deadline.after(0.05), "h/r"):
            pass
    with cache.asking("k", Deadline.after(0.05), "h/r"):  # given back
        pass


def test_nobody_waits_where_there_are_none() -> None:
    cache = RedirectCache(VirtualClock(), renew=True)
    with cache.asking("k", Deadline(), "h/r"), cache.asking("k", Deadline.after(0.05), "h/r"):
        pass
    cache.put("other", "u", 60)
    cache.put_direct("k")
    with cache.asking("k", Deadline(), "h/r"), cache.asking("k", Deadline.after(0.05), "h/r"):
        pass


def test_many_threads_ask_one_after_the_other() -> None:
    cache = RedirectCache(VirtualClock(), renew=True)
    cache.put("other", "u", 60)
    inside, most = 0, 0

    def work() -> None:
        nonlocal inside, most
        for _ in range(20):
            with cache.asking("k", Deadline.after(10), "h/r"):
                inside += 1
                most = max(most, inside)
                time.sleep(0)
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert most == 1
