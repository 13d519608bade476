"""Buffers: used again when nobody looks any more, and never sooner."""

from __future__ import annotations

import gc
import itertools
import threading

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tonne.image.buffers import LENT_BYTES_MIN, Buffers
from tonne.settings import MIB


def test_one_comes_back_with_its_last_view() -> None:
    buffers = Buffers(64 * MIB)
    first = buffers.take(2 * MIB)
    place = np.frombuffer(first, np.uint8).ctypes.data
    part = first[MIB : MIB + 10].toreadonly()
    del first
    assert buffers.spare_bytes == 0
    other = buffers.take(2 * MIB)
    assert np.frombuffer(other, np.uint8).ctypes.data != place, "it is still looked at"
    del part
    assert buffers.spare_bytes == 2 * MIB
    again = buffers.take(2 * MIB - 7)
    assert again.nbytes == 2 * MIB - 7
    assert np.frombuffer(again, np.uint8).ctypes.data == place
    assert buffers.spare_bytes == 0


def test_an_array_of_a_view_keeps_it_too() -> None:
    buffers = Buffers(64 * MIB)
    array = np.frombuffer(buffers.take(MIB)[10:20], np.uint8)
    assert buffers.spare_bytes == 0
    del array
    assert buffers.spare_bytes == MIB


def test_spare_ones_have_a_bound_and_the_oldest_go() -> None:
    buffers = Buffers(spare_bytes_max=4 * MIB)
    taken = [buffers.take(size * MIB) for size in (1, 2, 3)]
    while taken:
        del taken[0]
    assert buffers.spare_bytes == 3 * MIB


def test_a_small_request_does_not_take_a_large_one_away() -> None:
    buffers = Buffers(64 * MIB)
    buffers.take(16 * MIB)
    small = buffers.take(2 * MIB)
    assert buffers.spare_bytes == 16 * MIB
    assert small.nbytes == 2 * MIB


def test_what_is_small_is_not_kept() -> None:
    buffers = Buffers(64 * MIB)
    assert buffers.take(LENT_BYTES_MIN - 1).nbytes == LENT_BYTES_MIN - 1
    assert buffers.spare_bytes == 0


@given(st.lists(st.tuples(st.integers(0, 4 * MIB), st.booleans()), max_size=30))
def test_no_two_views_share_a_byte(steps: list[tuple[int, bool]]) -> None:
    buffers = Buffers(8 * MIB)
    held: list[memoryview] = []
    for size, give_back in steps:
        if give_back and held:
            held.pop(0)
        held.append(buffers.take(size))
        assert held[-1].nbytes == size
        places = sorted(
            (start, start + view.nbytes)
            for view in held
            if view.nbytes
            for start in [np.frombuffer(view, np.uint8).ctypes.data]
        )
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(places))
        assert buffers.spare_bytes <= 8 * MIB


def test_a_collection_of_garbage_while_one_is_taken_gives_back_without_a_lock() -> None:
    buffers = Buffers(64 * MIB)
    failures = []

    class Cycle:
        def __init__(self, view: memoryview) -> None:
            self.view, self.me = view, self

    def work() -> None:
        try:
            for _ in range(300):
                Cycle(buffers.take(MIB))
                gc.collect(0)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads), "it waits for itself"
    assert not failures
