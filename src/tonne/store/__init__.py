"""The node's disk: stored frames, and the records of what is there."""

from tonne.store.collection import Usage
from tonne.store.disk import Disk, OsDisk
from tonne.store.store import Store
from tonne.store.stored import StoredBlob

__all__ = ["Disk", "OsDisk", "Store", "StoredBlob", "Usage"]
