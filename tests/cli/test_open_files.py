"""Few files may be open: many shards are no hindrance, and what does not work is one sentence."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from toys import save_toy, tensors


def in_shards(folder: Path, seed: int) -> Path:
    """A toy with a file for every tensor."""
    save_toy("llama", folder, seed=seed, dtype=torch.float32)
    stored = tensors(folder)
    (folder / "model.safetensors").unlink()
    files = {name: f"model-{k:05d}-of-{len(stored):05d}.safetensors" for k, name in enumerate(stored, 1)}
    for name, file in files.items():
        save_file({name: stored[name]}, folder / file, metadata={"format": "pt"})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
    return folder


def test_few_open_files(tmp_path: Path) -> None:
    """Shards by the dozen under a low limit; under a lower one no traceback, nothing left, exit code 2."""
    models = [str(in_shards(tmp_path / name, seed)) for seed, name in enumerate("ab")]
    assert len(list((tmp_path / "a").glob("*.safetensors"))) > 20

    def merged(limit: int) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "isomerge", "merge", *models, "-o", str(tmp_path / str(limit))],
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit)),
            capture_output=True,
            text=True,
            check=False,
        )

    enough, few = merged(32), merged(8)
    assert enough.returncode == 0, enough.stderr
    assert few.returncode == 2
    assert few.stderr.splitlines()[-1].startswith("isomerge: too many files are open: raise the limit (ulimit -n ")
    assert "Traceback" not in few.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["32", "a", "b"]
