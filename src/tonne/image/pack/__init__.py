"""Packing: a folder becomes an image in one ordered pass (docs/architecture.md).

    scan -> read -> hash -> decide (new, or found in a base) -> encode -> lanes (packs) -> index -> manifest

Words: a *cell* is a file's bytes that may become a frame; a *group* a cell made of small files; *n* the number of a new
frame in the order in which content is found new; an *ordinal* a frame's place in its lane; a *ledger* what is
remembered of the pass, on disk, so that memory does not grow with the input.
"""

from tonne.image.pack.options import BaseSource, Links, PackOptions, PackResult
from tonne.image.pack.run import pack_folder

__all__ = ["BaseSource", "Links", "PackOptions", "PackResult", "pack_folder"]
