"""Code of a checkpoint's own travels with it, and what is not copied is told.

Mutants: without strings of code, without the way from one file to the next, or without packages' `__init__.py`, a row
of `KINDS` lacks a file; with every file that lies there, one has too many.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import isomerge
from isomerge.checkpoint.companions import companion_files, left_behind, tokenizer_files
from isomerge.errors import IsomergeError

AUTO = {"auto_map": {"AutoConfig": "configuration_own.OwnConfig", "AutoModel": "modeling_own.Own"}}
KINDS: dict[str, tuple[dict[str, Any], set[str], set[str]]] = {
    "relative imports, one from another, in all their forms": (
        {
            "config.json": AUTO,
            "configuration_own.py": "",
            "modeling_own.py": "from .configuration_own import OwnConfig\nfrom . import rotary, norms as n\n",
            "rotary.py": "try:\n    from .kernels.fast import (\n        turn,\n    )\nexcept ImportError: pass\n",
            "norms.py": "import torch, plain\n",
            "plain.py": "",
            "kernels/__init__.py": "",
            "kernels/fast.py": "from ..deep import x\nfrom .cuda import y\n",
            "kernels/cuda.py": "SOURCE = 'rope.cu'\n",
            "kernels/rope.cu": "",
            "deep.py": "",
            "unused.py": "import os\n",
        },
        {
            *("configuration_own.py", "modeling_own.py", "rotary.py", "norms.py", "plain.py", "deep.py"),
            *("kernels/__init__.py", "kernels/fast.py", "kernels/cuda.py", "kernels/rope.cu"),
        },
        {"unused.py"},
    ),
    "a tokenizer with its vocabulary": (
        {
            "config.json": {},
            "tokenizer_config.json": {"auto_map": {"AutoTokenizer": ["tokenization_own.Own", None]}},
            "tokenization_own.py": "VOCAB_FILES_NAMES = {'vocab_file': \"own.vocab\"}\n",
            "own.vocab": "",
            "qwen.tiktoken": "",
            "notes.txt": "",
        },
        {"tokenizer_config.json", "tokenization_own.py", "own.vocab", "qwen.tiktoken"},
        {"notes.txt"},
    ),
    "processors": (
        {
            "config.json": {},
            "preprocessor_config.json": {"auto_map": {"AutoImageProcessor": "image_own.Own"}},
            "processor_config.json": {"image_processor": {"auto_map": {"AutoProcessor": "processing_own.Own"}}},
            "image_own.py": "",
            "processing_own.py": "from .image_own import Own\n",
        },
        {"preprocessor_config.json", "processor_config.json", "image_own.py", "processing_own.py"},
        set(),
    ),
    "pipelines, generation, sentence-transformers": (
        {
            "config.json": {"custom_pipelines": {"pairs": {"impl": "pairs.Pipeline", "pt": ["AutoModel"]}}},
            "modules.json": [{"idx": 0, "path": "", "type": "custom_st.Transformer"}],
            "pairs.py": "",
            "custom_st.py": "",
            "custom_generate/generate.py": "from .beams import search\n",
            "custom_generate/beams.py": "",
        },
        {"modules.json", "pairs.py", "custom_st.py", "custom_generate/generate.py", "custom_generate/beams.py"},
        set(),
    ),
    "a license, notices; no weights, products, or what hides": (
        {
            "config.json": {"transformers_weights": "other.safetensors", "own": "../secret.py", "hidden": ".env"},
            "LICENSE": "",
            "License.txt": "",
            "NOTICE.md": "",
            "USE_POLICY.md": "",
            "README.md": "",
            ".env": "",
            "other.safetensors": "",
            "model.onnx": "",
            "onnx/model.onnx": "",
        },
        {"LICENSE", "License.txt", "NOTICE.md", "USE_POLICY.md"},
        {"onnx/"},
    ),
}  # fmt: skip


def laid(folder: Path, files: dict[str, Any]) -> Path:
    """A folder with these files."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_what_configs_and_code_name_travels(kind: str, tmp_path: Path) -> None:
    """And nothing else, and that is told."""
    files, copied, told = KINDS[kind]
    laid(tmp_path / "model", files)
    laid(tmp_path, {"secret.py": ""})
    assert {*companion_files(tmp_path / "model")} == copied
    notes = left_behind(tmp_path / "model")
    assert len(notes) == bool(told)
    assert all(name in notes[0] for name in told)


def test_code_that_is_not_there_is_told(tmp_path: Path) -> None:
    """Code of another repository is found on the hub."""
    auto = {"auto_map": {"AutoModel": "modeling_own.Own", "AutoConfig": "org/name--configuration.Own"}}
    (note,) = left_behind(laid(tmp_path, {"config.json": auto}))
    assert note.endswith("auto_map names code that is not in the folder: modeling_own.py")


def test_code_goes_with_its_tokenizer(tmp_path: Path) -> None:
    """Where the output has the tokenizer of another model than its weights' names."""
    files = KINDS["a tokenizer with its vocabulary"][0]
    companions: Any = companion_files(laid(tmp_path, {**files, "LICENSE": ""}))
    assert {*tokenizer_files(companions)} == {*companions} - {"LICENSE"}


@pytest.mark.parametrize("linked", ["code.py", "code"])
def test_code_behind_a_link_is_refused(linked: str, tmp_path: Path) -> None:
    """A link out of the folder, of a file or of a folder that it lies in."""
    laid(tmp_path, {"elsewhere/secret.py": "password", "code.py": "password"})
    model = laid(
        tmp_path / "model", {"config.json": {"auto_map": {"AutoModel": "code.Own"}, "a": "code/secret.py"}}
    )
    (model / linked).symlink_to(tmp_path / "code.py" if linked.endswith("py") else tmp_path / "elsewhere")
    with pytest.raises(IsomergeError, match="is a link out of its folder"):
        companion_files(model)


def test_an_output_has_the_code(tmp_path: Path) -> None:
    """Of a merge, whose report tells the rest."""
    for name in "ab":
        config = {"model_type": "own", **AUTO}
        files = {"modeling_own.py": "import torch\n", "extra.bin.txt": "", "config.json": config}
        save_file({"lin.weight": torch.randn(4, 4)}, laid(tmp_path / name, files) / "model.safetensors")
    report = isomerge.merge([tmp_path / "a", tmp_path / "b"], out=tmp_path / "out", align=False)
    assert (tmp_path / "out" / "modeling_own.py").read_text() == "import torch\n"
    assert [note for note in report["notes"] if "extra.bin.txt" in note]
    assert [note for note in report["notes"] if note.endswith("not in the folder: configuration_own.py")]
