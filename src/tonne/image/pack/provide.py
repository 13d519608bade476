"""Bringing packs of bases to where the new image goes: there already, mounted, or copied."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tonne.errors import Corrupt, Missing, Refused, Unavailable
from tonne.image.pack.base import BasePack
from tonne.image.pack.blobs import copy_blob
from tonne.image.pack.flow import Flow
from tonne.image.pack.journal import Journal
from tonne.image.pack.options import BaseSource
from tonne.image.workers import all_of
from tonne.model import Digest, LayoutReference, Reference, RegistryReference
from tonne.source.seam import Sink, SinkFacts

COPIES = 4  # at once, as many as lanes


def mount_name(base: Reference, target: Reference) -> str | None:
    """What `Sink.mount` calls the base's repository; None when blobs cannot be mounted from it."""
    if isinstance(base, RegistryReference) and isinstance(target, RegistryReference) and base.host == target.host:
        return base.repository
    if isinstance(base, LayoutReference) and isinstance(target, LayoutReference):
        return base.path
    return None


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
        sink: Sink,
        facts: SinkFacts,
        flow: Flow,
        journal: Journal,
        warn: Callable[[str], None],
    ) -> None:
        self._bases = bases
        self._target = target
        self._sink = sink
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
        deadline = self._flow.deadline
        return self._sink.has(pack.blob.digest, deadline) == pack.blob.size_bytes or self._mounted(pack)

    def _mounted(self, pack: BasePack) -> bool:
        name = mount_name(self._bases[pack.base].reference, self._target)
        return name is not None and self._sink.mount(pack.blob, name, self._flow.deadline)

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
            if not self._is_there(pack):
                copy_blob(
                    self._bases[pack.base].source,
                    self._sink,
                    self._facts,
                    pack.blob,
                    self._flow.deadline,
                    self._flow.count_sent,
                )
            advance(pack.blob.size_bytes)

        all_of(packs, copy, COPIES, self._flow.halt)

    def bring_again(self, pack: BasePack) -> bool:
        """Bring a pack that the target has lost; False when the base has it no more either."""
        base = self._bases[pack.base]
        try:
            # Whether it is there is not asked: the target said so before, and then missed it.
            if not self._mounted(pack):
                count, deadline = self._flow.count_sent, self._flow.deadline
                copy_blob(base.source, self._sink, self._facts, pack.blob, deadline, count, ask=False)
        except Missing:
            self.refuse(pack.pack.digest)
            return False
        return True

    def refuse(self, digest: Digest) -> None:
        """Do not use a pack, in this run or a later one of the same packing."""
        self._answers[str(digest)] = False
        self._journal.keep_bases(self._answers)
