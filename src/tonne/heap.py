"""The allocator of a process that lives for months and moves buffers of megabytes."""

from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # glibc's malloc.h
ARENAS = 2  # glibc makes up to eight a core, and each keeps what was once freed in it
LARGE_BYTES = 256 * 1024  # from here on an allocation is a mapping of its own, given back when it is freed
TRIM_BYTES = 4 * 1024 * 1024


def tame_allocator() -> bool:
    """Make freed buffers go back to the system at once; False where the C library has no such knobs, as musl.

    Without it glibc raises its threshold for mappings to the largest buffer that was freed, up to 32 MiB, and frames
    then lie in arenas, which do not shrink: the process grows to the most that it ever held in each arena.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    knobs = ((_M_ARENA_MAX, ARENAS), (_M_MMAP_THRESHOLD, LARGE_BYTES), (_M_TRIM_THRESHOLD, TRIM_BYTES))
    return all(mallopt(knob, value) == 1 for knob, value in knobs)
