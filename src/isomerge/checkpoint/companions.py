"""What a checkpoint holds besides its weights: the tokenizer, processors, and the configuration."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from isomerge.errors import IsomergeError

MODEL_FILES = ("config.json", "model_index.json", "adapter_config.json", "isomerge.json")
"""What says that a folder holds a model, or was made to."""

WEIGHTS = (".safetensors", ".bin", ".pt", ".pth")
"""Endings of files of weights, or of folders that hold some."""

VOCABULARY_FILES = (
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
    "vocab-src.json",
    "spiece.model",
    "sentencepiece.bpe.model",
    "sentencepiece.model",
    "tokenizer.model",
    "spm.model",
    "spm_char.model",
    "source.spm",
    "prophetnet.tokenizer",
    "tekken.json",
)
"""Those of which a tokenizer has at least one."""

TOKENIZER_FILES = (
    *VOCABULARY_FILES,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "merges.txt",
    "bpe.codes",
    "vocab-tgt.json",
    "target.spm",
    "target_vocab.json",
    "dict.txt",
    "normalizer.json",
    "byte_maps.json",
    "emoji.json",
    "entity_vocab.json",
    "word_shape.json",
    "word_pronunciation.json",
    "chat_template.jinja",
    "chat_template.json",
)
"""Those that belong to a tokenizer."""

COMPANIONS = (
    "generation_config.json",
    *TOKENIZER_FILES,
    "preprocessor_config.json",
    "video_preprocessor_config.json",
    "processor_config.json",
    "modules.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
)
"""Names of the files that travel with the weights; config.json is not among them, as it may change."""

_TOKENIZER_FOLDER = re.compile(r"[a-z_]+_tokenizer", re.ASCII)  # a processor's second one: qformer_tokenizer
_MODULE_FOLDER = re.compile(r"[0-9]+_[A-Za-z]\w*", re.ASCII)  # sentence-transformers: 1_Pooling, 2_Normalize, ...


def companion_files(folder: str | Path) -> dict[str, Path]:
    """The companion files of the checkpoint in ``folder``: name relative to it, with "/", -> path.

    These are the COMPANIONS that exist, chat templates in additional_chat_templates/, further tokenizers of a
    processor (in qformer_tokenizer/, say), and the modules of sentence-transformers behind the model, such as
    1_Pooling and 2_Dense: their config.json and their model.safetensors, which reads what the model gives out and
    so fits as it is. Other weights, config.json, code, pickles and optimizer states are never among them. A link
    may lead to a file of the same folder or of its repository in the hub's cache: what it leads to is copied into
    the output, and with it would be published. Raises IsomergeError when ``folder`` is no folder, and when a link
    leads elsewhere.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise IsomergeError(f"{folder}: no such folder; give an existing checkpoint folder")
    names = [name for name in COMPANIONS if (folder / name).is_file()]
    for path in sorted(folder.glob("*/*")):
        parent = path.parent.name
        template = parent == "additional_chat_templates" and path.suffix == ".jinja"
        module = path.name in ("config.json", "model.safetensors") and _MODULE_FOLDER.fullmatch(parent) is not None
        tokenizer = path.name in TOKENIZER_FILES and _TOKENIZER_FOLDER.fullmatch(parent) is not None
        if (template or module or tokenizer) and path.is_file():
            names.append(f"{parent}/{path.name}")
    for name in names:
        check_link(folder, folder / name)
    return {name: folder / name for name in names}


def check_link(folder: Path, path: Path) -> None:
    """Raises IsomergeError where a link leads out of the folder and of its repository in the hub's cache."""
    target, home = path.resolve(), folder.resolve()
    roots = [home, *([home.parents[1] / "blobs"] if home.parent.name == "snapshots" else [])]
    if path.is_symlink() and not any(target.is_relative_to(root) for root in roots):
        raise IsomergeError(
            f"{path} is a link out of its folder, and what it leads to would be copied; "
            "replace it by the file itself"
        )


def files_of_model(folder: Path) -> list[Path]:
    """What must stay as it is where ``folder`` is read: a model's weights, configs and companions, wherever in it.

    What else lies in a model's folder is not read with it. A folder that is no model is told whole, by its own
    path.
    """
    if not folder.is_dir() or not any((folder / name).is_file() for name in MODEL_FILES):
        return [folder]
    known = {*COMPANIONS, *MODEL_FILES}
    return [
        path
        for path in folder.rglob("*")
        if path.name in known or path.suffix in WEIGHTS or path.name.endswith(".index.json")
    ]


def is_tokenizer_file(name: str) -> bool:
    """Whether a companion file belongs to the tokenizer, chat templates included."""
    return name in TOKENIZER_FILES or name.startswith("additional_chat_templates/")


def tokenizer_files(companions: Mapping[str, bytes | Path]) -> dict[str, bytes | Path]:
    """Those of a checkpoint's companion files that are its tokenizer's."""
    return {name: content for name, content in companions.items() if is_tokenizer_file(name)}


def ids_of_tokens(companions: Mapping[str, bytes | Path]) -> dict[str, int]:
    """The tokens with their ids, as tokenizer.json and tokenizer_config.json have them.

    Raises:
        OSError, ValueError, KeyError, TypeError, AttributeError: what stands there is no tokenizer.
    """
    files = (companions.get(name, b"{}") for name in ("tokenizer.json", "tokenizer_config.json"))
    content, settings = (json.loads(x if isinstance(x, bytes) else x.read_bytes()) for x in files)
    vocab = content["model"]["vocab"]
    ids = dict(vocab) if isinstance(vocab, dict) else {piece: at for at, (piece, _) in enumerate(vocab)}
    ids |= {token["content"]: token["id"] for token in content.get("added_tokens") or ()}
    added = (settings.get("added_tokens_decoder") or {}).items()
    return ids | {token["content"]: int(at) for at, token in added}


def config_bytes(config: Mapping[str, Any], **changes: Any) -> bytes:
    """``config`` with ``changes`` applied, as the bytes of a config.json.

    UTF-8 with two-space indent, a final newline and the key order of ``config``; new keys come last. A
    change to None writes null. Raises IsomergeError when a value has no JSON form.
    """
    merged = {**config, **changes}
    try:
        return (json.dumps(merged, indent=2) + "\n").encode()
    except (TypeError, ValueError) as error:
        raise IsomergeError(f"config.json cannot be written: {error}; use plain JSON values only") from error
