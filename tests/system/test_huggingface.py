"""A Hugging Face cache folder packs from its snapshot path, though that is all symbolic links out of it."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save

from tests.system.command import Tonne

pytestmark = [pytest.mark.system]

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def make_cache(folder: Path) -> tuple[Path, dict[str, np.ndarray]]:
    """The layout that huggingface_hub makes: blobs, refs, snapshots of relative links. Returns the snapshot."""
    random = np.random.default_rng(3)
    tensors = {
        "embed.weight": random.standard_normal((512, 256), dtype=np.float32),
        "layer.0.weight": random.standard_normal((256, 256), dtype=np.float32).astype(ml_dtypes.bfloat16),
        "layer.0.bias": random.standard_normal(256, dtype=np.float32).astype(np.float16),
    }
    files = {
        "model-00001-of-00002.safetensors": save({"embed.weight": tensors["embed.weight"]}),
        "model-00002-of-00002.safetensors": save({key: tensors[key] for key in ("layer.0.weight", "layer.0.bias")}),
        "config.json": json.dumps({"model_type": "test"}).encode(),
        "tokenizer/vocab.txt": b"a\nb\nc\n",
    }
    repository = folder / "models--someone--model"
    snapshot = repository / "snapshots" / COMMIT
    (repository / "blobs").mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    for name, data in files.items():
        blob = repository / "blobs" / hashlib.sha256(data).hexdigest()
        blob.write_bytes(data)
        link = snapshot / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(blob, link.parent))
    return snapshot, tensors


@pytest.mark.usefixtures("needs_fuse")
def test_a_snapshot_packs_as_real_files_and_loads_from_the_mount(tmp_path: Path) -> None:
    snapshot, tensors = make_cache(tmp_path / "hub")
    tonne = Tonne(tmp_path / "cache")
    reference = f"oci:{tmp_path / 'layout'}:v1"
    tonne.run("pack", snapshot, reference)
    point = tmp_path / "mount"
    with tonne.mounted(reference, point):
        assert sorted(str(path.relative_to(point)) for path in point.rglob("*") if not path.is_dir()) == [
            "config.json",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "tokenizer/vocab.txt",
        ]
        assert not any(path.is_symlink() for path in point.rglob("*"))
        loaded: dict[str, np.ndarray] = {}
        for path in sorted(point.glob("*.safetensors")):
            with safe_open(path, framework="numpy") as file:
                loaded.update({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118  # not a mapping
    assert loaded.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert loaded[name].dtype == tensor.dtype
        assert np.array_equal(loaded[name].view(np.uint8), tensor.view(np.uint8)), name


def test_links_can_be_kept_or_refused(tmp_path: Path) -> None:
    snapshot, _ = make_cache(tmp_path / "hub")
    tonne = Tonne(tmp_path / "cache")
    refused = tonne.error("pack", snapshot, f"oci:{tmp_path / 'layout'}:v1", "--links", "error")
    assert refused["code"] == "local.symlink"
    tonne.run("pack", snapshot, f"oci:{tmp_path / 'layout'}:v2", "--links", "keep")
    assert "blobs" in tonne.run("ls", f"oci:{tmp_path / 'layout'}:v2", "-l").stdout
