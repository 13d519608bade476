"""What a copy remembers between runs: the upload session of each blob that is on its way."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from tonne.image.locked_folder import LockedFolder
from tonne.image.upload_notes import UploadNotes
from tonne.model import Digest


class CopyJournal:
    """The notes of one copy, in a folder that is locked from `__init__` to `close` or `remove`.

    A second copy of the same manifest to the same place is `Locked`.  Any thread may use `uploads`.
    """

    def __init__(self, folder: Path, manifest: Digest, target: str) -> None:
        key = hashlib.sha256(json.dumps([str(manifest), target]).encode()).hexdigest()[:32]
        self._folder = LockedFolder(folder / "copy", key, "another copy of this image to the same place runs")
        try:
            self.uploads = UploadNotes(self._folder.path)
        except BaseException:
            self.close()
            raise

    def remove(self) -> None:
        """The copy is complete: nothing is left to remember."""
        self._folder.remove()

    def close(self) -> None:
        """Let the lock go.  Idempotent."""
        self._folder.close()
