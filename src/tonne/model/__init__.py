"""Values that the whole of tonne shares.  Pure: no I/O, no clock, nothing of ours is imported but the errors."""

from tonne.model.digest import Blob, Digest, blake3_of
from tonne.model.entry import Entry, Extent, Kind
from tonne.model.frame import Codec, Frame
from tonne.model.reference import LayoutReference, Reference, RegistryReference, parse_reference

__all__ = [
    "Blob",
    "Codec",
    "Digest",
    "Entry",
    "Extent",
    "Frame",
    "Kind",
    "LayoutReference",
    "Reference",
    "RegistryReference",
    "blake3_of",
    "parse_reference",
]
