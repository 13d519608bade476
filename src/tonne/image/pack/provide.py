"""Bringing packs of bases to where the new image goes: there already, mounted, or copied."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tonne.errors import Corrupt, Missing, Refused, SessionLost, Unavailable
from tonne.image.blob_copy import BLOBS_AT_ONCE, BlobCopier
from tonne.image.pack.base import BasePack
from tonne.image.pack.flow import Flow
from tonne.image.pack.journal import Journal
from tonne.image.pack.options import BaseSource
from tonne.image.workers import all_of
from tonne.model import Digest, Reference
from tonne.source.compose import mount_name
from tonne.source.seam import SinkFacts


class Provider:
    """Says which packs of bases can be used, and brings those that are.

    `usable` is called by one thread at a time, `bring` by the thread that packs once the pass is over.  Answers are in
    the journal, because another answer at the next run would give another image.  After an error both may be called
    again.
    """

    def __init__(
        self,
        bases: Sequence[BaseSource],
        target: Reference,
        copier: BlobCopier,
        facts: SinkFacts,
        flow: Flow,
        journal: Journal,
        warn: Callable[[str], None],
    ) -> None:
        self._bases = bases
        self._target = target
        self._copier = copier
        self._facts = facts
        self._flow = flow
        self._journal = journal
        self._warn = warn
        self._answers = journal.bases()

    def usable(self, pack: BasePack) -> bool:
        """Whether the pack is at the target, was mounted there, or can be copied."""
        base = self._bases[pack.base]
        key = str(pack.pack.digest)
        if key not in self._answers:
            if base.reference.origin == self._target.origin:
                return True
            self._answers[key] = self._is_there(pack) or self._can_copy(pack, base)
            self._journal.keep_bases(self._answers)
            if not self._answers[key]:
                self._warn(f"a pack of {base.reference} cannot be brought here: its content is stored anew ({key})")
        return self._answers[key]

    def _is_there(self, pack: BasePack) -> bool:
        return self._copier.is_there(pack.blob, self._mount_name(pack))

    def _mount_name(self, pack: BasePack) -> str:
        return mount_name(self._bases[pack.base].reference, self._target)

    def _can_copy(self, pack: BasePack, base: BaseSource) -> bool:
        limit = self._facts.blob_bytes_max
        if limit is not None and pack.blob.size_bytes > limit:
            return False
        try:
            return base.source.size(pack.blob.digest, self._flow.deadline) == pack.blob.size_bytes
        except (Missing, Refused, Corrupt, Unavailable):
            return False

    def far(self, packs: Sequence[BasePack]) -> list[BasePack]:
        """Those of the used packs that come from elsewhere."""
        return [pack for pack in packs if self._bases[pack.base].reference.origin != self._target.origin]

    def bring(self, packs: Sequence[BasePack], advance: Callable[[int], None]) -> None:
        """Copy packs that are not at the target."""

        def copy(pack: BasePack) -> None:
            if self._is_there(pack):
                advance(pack.blob.size_bytes)
            else:
                self._copier.copy(pack.blob, self._bases[pack.base].source, advance)

        all_of(packs, copy, BLOBS_AT_ONCE, self._flow.halt)

    def bring_again(self, pack: BasePack) -> bool:
        """Bring a pack that the target has lost; False when the base has it no more either."""
        try:
            # Whether it is there is not asked: the target said so before, and then missed it.
            if not self._copier.mounted(pack.blob, self._mount_name(pack)):
                self._copier.copy(pack.blob, self._bases[pack.base].source)
        except SessionLost:
            raise  # of the target
        except Missing:
            self.refuse(pack.pack.digest)
            return False
        return True

    def refuse(self, digest: Digest) -> None:
        """Do not use a pack, in this run or a later one of the same packing."""
        self._answers[str(digest)] = False
        self._journal.keep_bases(self._answers)
