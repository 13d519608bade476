"""The FUSE adapter: the kernel's requests, translated to a view and back.

Source: pyfuse3 3.5, "Request handlers"; the kernel's fuse.h for what each answer lets it keep.
"""

from __future__ import annotations

import errno
import itertools
import json
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

import pyfuse3
import trio

from tonne.clock import Deadline
from tonne.errors import DeadlineExceeded, MissingPath, TonneError
from tonne.image.index import MEMORY_ONLY, NotInMemory
from tonne.image.view import OpenFile, View
from tonne.model import Entry
from tonne.mount.attributes import Owner, absent, attributes_of, space_of
from tonne.mount.log import Quiet

READS_MAX = 32  # reads that wait in threads; more wait for one of these to end, or for their own deadline
LOOKUPS_MAX = 8  # of the tree, apart from reads: a source that hangs must not stop lookups in pages that are there
LISTED_TOGETHER = 256  # names taken from a folder at once: about what one reply holds
STATE_NAME = b"user.tonne.mount"  # an attribute of the root that is not listed: who serves this mount
LATE_S = 1.0  # how much later than its deadline a call may return by itself before it is left alone

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(slots=True)
class _Listing:
    """A folder that is being listed: names taken but not yet told, and the place of the first of them."""

    folder: Entry
    place: int = 0
    ready: deque[Entry] = field(default_factory=deque)


def answered(handler: Callable[P, Awaitable[R]]) -> Callable[P, Coroutine[Any, Any, R]]:
    """Every failure of a handler becomes an answer: what goes beyond would end the mount for all its readers."""

    async def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return await handler(*args, **kwargs)
        except pyfuse3.FUSEError:
            raise
        except MissingPath:
            raise pyfuse3.FUSEError(errno.ENOENT) from None
        except TonneError as error:
            args[0].quiet.tell(error)  # type: ignore[attr-defined]
            raise pyfuse3.FUSEError(errno.EIO) from None
        except Exception as error:
            args[0].quiet.defect(error)  # type: ignore[attr-defined]
            raise pyfuse3.FUSEError(errno.EIO) from None

    return guarded


class Operations(pyfuse3.Operations):
    """Serves one view.

    Called by pyfuse3 in trio's thread alone, several handlers interleaved; the view is called in worker threads, reads
    and lookups in groups of their own.  Answers that are in memory are given at once.  Nothing is counted for inodes:
    they are the image's own numbers and mean the same for ever.  A failure is answered with EIO and forgotten.
    """

    supports_dot_lookup = False
    enable_writeback_cache = False

    def __init__(self, view: View, owner: Owner, deadline_s: float, state: dict[str, Any], quiet: Quiet) -> None:
        """`state`: what `STATE_NAME` gives on the root, as JSON."""
        super().__init__()
        self.quiet = quiet
        self._view = view
        self._owner = owner
        self._deadline_s = deadline_s
        self._state = json.dumps(state).encode()
        self._reads = trio.CapacityLimiter(READS_MAX)
        self._lookups = trio.CapacityLimiter(LOOKUPS_MAX)
        self._numbers = itertools.count(1)
        self._files: dict[int, OpenFile] = {}
        self._listings: dict[int, _Listing] = {}

    async def _in_thread(self, limiter: trio.CapacityLimiter, work: Callable[[Deadline], R]) -> R:
        """Have `work` done by a thread, with the deadline of one request; that counts from now, the queue included."""
        deadline = Deadline.after(self._deadline_s)
        with trio.move_on_after(self._deadline_s + LATE_S):
            return await trio.to_thread.run_sync(work, deadline, limiter=limiter, abandon_on_cancel=True)
        raise DeadlineExceeded("a request to the mount was not answered in time", why=f"{self._deadline_s:g} s")

    async def _at_once_or_later(self, work: Callable[[Deadline], R]) -> R:
        """Have `work` done here if all it needs is in memory, else by a thread: that alone costs ten times as much."""
        try:
            return work(MEMORY_ONLY)
        except NotInMemory:
            return await self._in_thread(self._lookups, work)

    # --- tree ---

    @answered
    async def lookup(self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> pyfuse3.EntryAttributes:
        def work(deadline: Deadline) -> Entry | None:
            return self._view.lookup(parent_inode, name, deadline)

        found = await self._at_once_or_later(work)
        return absent() if found is None else attributes_of(found, self._owner)

    @answered
    async def getattr(self, inode: int, ctx: pyfuse3.RequestContext) -> pyfuse3.EntryAttributes:
        return attributes_of(await self._entry(inode), self._owner)

    @answered
    async def readlink(self, inode: int, ctx: pyfuse3.RequestContext) -> bytes:
        entry = await self._entry(inode)
        if not entry.target:
            raise pyfuse3.FUSEError(errno.EINVAL)
        return entry.target

    @answered
    async def getxattr(self, inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> bytes:
        if inode == pyfuse3.ROOT_INODE and name == STATE_NAME:
            return self._state
        for each, value in (await self._entry(inode)).xattrs:
            if each == name:
                return value
        raise pyfuse3.FUSEError(pyfuse3.ENOATTR)

    @answered
    async def listxattr(self, inode: int, ctx: pyfuse3.RequestContext) -> Sequence[bytes]:
        return [name for name, _ in (await self._entry(inode)).xattrs]

    @answered
    async def statfs(self, ctx: pyfuse3.RequestContext) -> pyfuse3.StatvfsData:
        return space_of(self._view.space())

    async def forget(self, inode_list: Sequence[tuple[int, int]]) -> None:
        pass

    async def _entry(self, inode: int) -> Entry:
        return await self._at_once_or_later(lambda deadline: self._view.entry(inode, deadline))

    # --- folders ---

    @answered
    async def opendir(self, inode: int, ctx: pyfuse3.RequestContext) -> int:
        entry = await self._entry(inode)
        if not entry.is_dir:
            raise pyfuse3.FUSEError(errno.ENOTDIR)
        handle = next(self._numbers)
        self._listings[handle] = _Listing(entry)
        return handle

    @answered
    async def readdir(self, fh: int, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        listing = self._listings[fh]
        folder = listing.folder
        # Places 0 and 1 are the two dots; a cookie is the place that comes next.
        for place, name, inode in ((0, b".", folder.number), (1, b"..", folder.parent or folder.number)):
            if start_id <= place:
                dot = attributes_of(await self._entry(inode), self._owner)
                if not pyfuse3.readdir_reply(token, name, dot, place + 1):
                    return
        place = max(start_id - 2, 0)
        if place != listing.place:
            listing.place, listing.ready = place, deque()
        while True:
            if not listing.ready:
                await self._at_once_or_later(lambda deadline: self._take(listing, deadline))
                if not listing.ready:
                    return
            while listing.ready:
                entry = listing.ready[0]
                attributes = attributes_of(entry, self._owner)
                if not pyfuse3.readdir_reply(token, entry.name, attributes, listing.place + 3):
                    return
                listing.ready.popleft()
                listing.place += 1

    def _take(self, listing: _Listing, deadline: Deadline) -> None:
        """The next names of a folder.  After an error the folder goes on from the same place, with a new deadline."""
        children = self._view.children(listing.folder.number, deadline, listing.place)
        listing.ready = deque(itertools.islice(children, LISTED_TOGETHER))

    async def releasedir(self, fh: int) -> None:
        self._listings.pop(fh, None)

    # --- files ---

    @answered
    async def open(self, inode: int, flags: int, ctx: pyfuse3.RequestContext) -> pyfuse3.FileInfo:
        entry = await self._entry(inode)
        if not entry.is_file:
            raise pyfuse3.FUSEError(errno.EISDIR if entry.is_dir else errno.ELOOP)
        handle = next(self._numbers)
        self._files[handle] = OpenFile(self._view, entry)
        # The content of an inode never changes, so what the kernel has of it stays good.
        return pyfuse3.FileInfo(fh=handle, keep_cache=True)

    @answered
    async def read(self, fh: int, off: int, size: int) -> bytes:
        file = self._files[fh]
        data = file.peek(off, size)
        if data is None:
            data = await self._in_thread(self._reads, lambda deadline: file.read(off, size, deadline))
        return data  # type: ignore[return-value]  # any buffer will do, and this one is not copied

    async def release(self, fh: int) -> None:
        file = self._files.pop(fh, None)
        if file is not None:
            file.close()

    async def flush(self, fh: int) -> None:
        # Nothing is written here.  Told so once, the kernel spares us this request for every close.
        raise pyfuse3.FUSEError(errno.ENOSYS)
