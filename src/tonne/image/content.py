"""Decoded frames: fetched through the verifying fetcher, decoded once whoever asks, and kept for a while."""

from __future__ import annotations

import copy
import threading
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field

from tonne.clock import Deadline
from tonne.codec.frames import Decoder
from tonne.errors import DeadlineExceeded, TonneError
from tonne.image.allowance import Allowance
from tonne.image.fetch import Fetcher, piece_of
from tonne.image.index import Index
from tonne.image.pool import Pool
from tonne.model import Codec, Frame
from tonne.settings import Settings
from tonne.source.seam import Priority, RisingPriority, Urgent


class DecodedCache:
    """Frames in memory, the least recently used go first.  Not locked: its owner does that.

    A frame that was stored raw is a slice of the buffer that its request filled, and keeps all of it alive.  So whole
    buffers are counted, each once, until the last frame in it has gone.  What is reserved counts too.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._frames: OrderedDict[int, memoryview] = OrderedDict()
        self._users: Counter[int] = Counter()
        self._reserved_bytes = 0
        self.held_bytes = 0

    def __contains__(self, number: int) -> bool:
        return number in self._frames

    def get(self, number: int) -> memoryview | None:
        content = self._frames.get(number)
        if content is not None:
            self._frames.move_to_end(number)
        return content

    def put(self, number: int, content: memoryview) -> None:
        """Keep a frame, at the cost of the oldest; one that is larger than the limit is kept until the next."""
        self._forget(number)
        self._frames[number] = content
        self._count(content, 1)
        self._shrink()

    def reserve(self, change_bytes: int) -> None:
        """Keep so much less, or more, for the sake of frames that are on their way."""
        self._reserved_bytes += change_bytes
        self._shrink()

    def _shrink(self) -> None:
        while self.held_bytes + self._reserved_bytes > self._limit_bytes and len(self._frames) > 1:
            self._forget(next(iter(self._frames)))

    def clear(self) -> None:
        self._frames.clear()
        self._users.clear()
        self.held_bytes = 0

    def _forget(self, number: int) -> None:
        content = self._frames.pop(number, None)
        if content is not None:
            self._count(content, -1)

    def _count(self, content: memoryview, change: int) -> None:
        # The view keeps its buffer alive, so the address cannot come to mean another one meanwhile.
        key = id(content.obj)
        before = self._users[key]
        if before + change:
            self._users[key] = before + change
        else:
            del self._users[key]
        if (before == 0) != (before + change == 0):
            self.held_bytes += change * memoryview(content.obj).nbytes


@dataclass(frozen=True, slots=True)
class _Flight:
    """A frame on its way; `began` is the priority of who fetches it, `priority` that of the most urgent who wait."""

    began: Priority
    priority: RisingPriority
    future: Future[memoryview] = field(default_factory=Future)


def bytes_under_way(frame: Frame) -> int:
    """What a frame takes of memory while it is fetched and decoded; one that is stored raw is not copied."""
    return frame.stored_bytes + (0 if frame.codec == Codec.RAW else frame.raw_bytes)


class Content:
    """Gives the content of frames by number.

    Any thread may call.  `_lock` guards the cache and the flights and is not held during I/O or decoding.  A flight is
    entered before the work and removed after its frame is in the cache, or after it failed: a failure is told to those
    who wait at that moment and not remembered.  Who waits for a less urgent caller's work, such as read-ahead, makes
    it as urgent as itself, and is not told of its failure but does the work again.  Nothing survives the process but
    what the fetcher kept.

    `decoded_cache_bytes` are for frames on their way and for those that stay together.  Half of them readers may fill
    with what they wait for, until it is in the store; further ones wait.  Read-ahead has its own bound.
    """

    def __init__(self, index: Index, fetcher: Fetcher, settings: Settings) -> None:
        self._index = index
        self._fetcher = fetcher
        self._packs = index.root.packs
        self._request_bytes = settings.network.request_bytes
        self._lock = threading.Lock()
        self._cache = DecodedCache(settings.read.decoded_cache_bytes)
        self._demand = Allowance(settings.read.decoded_cache_bytes // 2)
        self._flights: dict[int, _Flight] = {}
        self._local = threading.local()
        self._pool = Pool(settings.network.connections, "tonne-frames")

    def frames(
        self, numbers: Iterable[int], deadline: Deadline, priority: Urgent = Priority.DEMAND
    ) -> dict[int, memoryview]:
        """The content of each frame, verified and decoded.  All of it is in memory at once.

        Neighbours come in one request; several requests are made at the same time.
        """
        got: dict[int, memoryview] = {}
        ours: list[int] = []
        waiting: list[tuple[int, _Flight]] = []
        rising = RisingPriority(priority.now)
        with self._lock:
            for number in dict.fromkeys(numbers):
                held = self._cache.get(number)
                if held is not None:
                    got[number] = held
                elif (flight := self._flights.get(number)) is not None:
                    waiting.append((number, flight))
                else:
                    self._flights[number] = _Flight(priority.now, rising)
                    ours.append(number)
        with rising.following(priority):
            if ours:
                waiting += self._begin(ours, got, deadline, rising)
            for number, flight in waiting:
                got[number] = self._join(number, flight, deadline, priority)
        return got

    def peek(self, number: int) -> memoryview | None:
        """A frame's content if it is in memory; never waits for anything but a short lock."""
        with self._lock:
            return self._cache.get(number)

    def absent(self, numbers: Iterable[int]) -> list[int]:
        """Those that are neither in memory nor on their way."""
        with self._lock:
            return [
                number for number in dict.fromkeys(numbers) if number not in self._cache and number not in self._flights
            ]

    def runs(self, frames: Sequence[Frame], limit_bytes: int) -> list[list[Frame]]:
        """Frames that lie together in a pack, put together up to `limit_bytes` of memory while on their way."""
        runs: list[list[Frame]] = []
        size_bytes = 0
        for frame in sorted(frames, key=lambda item: (item.pack, item.offset)):
            last = runs[-1][-1] if runs else None
            size_bytes += bytes_under_way(frame)
            if last is not None and (last.pack, last.end) == (frame.pack, frame.offset) and size_bytes <= limit_bytes:
                runs[-1].append(frame)
            else:
                runs.append([frame])
                size_bytes = bytes_under_way(frame)
        return runs

    @property
    def held_bytes(self) -> int:
        """What the decoded frames take of memory."""
        with self._lock:
            return self._cache.held_bytes

    def close(self) -> None:
        """Forget everything; work under way ends by itself.  Idempotent."""
        self._pool.close()
        with self._lock:
            self._cache.clear()

    def _begin(
        self, numbers: Sequence[int], got: dict[int, memoryview], deadline: Deadline, priority: Urgent
    ) -> list[tuple[int, _Flight]]:
        """Do the first run here and have the others done; returns the flights of those."""
        try:
            runs = self.runs(self._index.frames(numbers, deadline), self._request_bytes)
        except BaseException as error:
            self._fail(numbers, error)
            raise
        others = [(frame.number, self._flights[frame.number]) for run in runs[1:] for frame in run]
        for run in runs[1:]:
            self._pool.submit(lambda run=run: self._carry_for_others(run, deadline, priority))  # type: ignore[misc]
        got.update(self._carry(runs[0], deadline, priority))
        return others

    def _carry_for_others(self, run: list[Frame], deadline: Deadline, priority: Urgent) -> None:
        try:
            self._carry(run, deadline, priority)
        except Exception:
            pass  # whoever waits for the flights has been told

    def _carry(self, run: list[Frame], deadline: Deadline, priority: Urgent) -> dict[int, memoryview]:
        """Fetch and decode frames of which the flights are ours, and land them, whatever happens."""
        size_bytes = sum(map(bytes_under_way, run))
        try:
            allowed = nullcontext() if priority.now == Priority.AHEAD else self._demand.portion(size_bytes, deadline)
            with allowed, self._reserved(size_bytes):
                done = self._decoded(run, deadline, priority)
        except BaseException as error:
            self._fail([frame.number for frame in run], error)
            raise
        with self._lock:
            flights = []
            for number, content in done.items():
                self._cache.put(number, content)
                flights.append((self._flights.pop(number), content))
        for flight, content in flights:
            flight.future.set_result(content)
        return done

    def _decoded(self, run: list[Frame], deadline: Deadline, priority: Urgent) -> dict[int, memoryview]:
        blob = self._packs[run[0].pack].blob
        stored = self._fetcher.pieces(blob, [piece_of(frame) for frame in run], deadline, priority)
        decoder = self._decoder()
        return {
            frame.number: memoryview(decoder.decode(frame.codec, data, frame.raw_bytes, frame.parameters)).toreadonly()
            for frame, data in zip(run, stored, strict=True)
        }

    @contextmanager
    def _reserved(self, size_bytes: int) -> Iterator[None]:
        """Has the cache give way to frames on their way."""
        with self._lock:
            self._cache.reserve(size_bytes)
        try:
            yield
        finally:
            with self._lock:
                self._cache.reserve(-size_bytes)

    def _fail(self, numbers: Iterable[int], error: BaseException) -> None:
        with self._lock:
            flights = [self._flights.pop(number) for number in numbers]
        for flight in flights:
            flight.future.set_exception(error)

    def _join(self, number: int, flight: _Flight, deadline: Deadline, priority: Urgent) -> memoryview:
        try:
            with flight.priority.following(priority):
                return flight.future.result(timeout=deadline.left_s())
        except FutureTimeout:
            raise DeadlineExceeded("waiting for a frame that another reader fetches", where=f"frame {number}") from None
        except TonneError as error:
            # A deadline was theirs, not ours; read-ahead gives up earlier than a reader does.
            if not isinstance(error, DeadlineExceeded) and flight.began <= priority.now:
                # A copy: an exception that several threads raise would mix up their tracebacks.
                raise copy.copy(error) from error
            deadline.check("reading", f"frame {number}")
        return self.frames([number], deadline, priority)[number]

    def _decoder(self) -> Decoder:
        decoder = getattr(self._local, "decoder", None)
        if decoder is None:
            decoder = self._local.decoder = Decoder()
        return decoder
