"""What a checkpoint holds besides its weights: the tokenizer, processors, and the configuration."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from functools import partial
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
_TERMS = re.compile(r"(licen[cs]e|copying|notice|(acceptable_)?use_policy)\b.*", re.IGNORECASE)
_TIKTOKEN = ".tiktoken"
_NAMING = (
    "config.json",
    "modules.json",
    "tokenizer_config.json",
    "preprocessor_config.json",
    "processor_config.json",
)
"""Configs that may name code."""
_REPLACED = ("README.md", *MODEL_FILES, "report.html", "isomerge_recipe.yml", "distances.png", "tune.json")
"""What an output has of its own."""
_OTHER_WEIGHTS = (*WEIGHTS, ".index.json", ".h5", ".msgpack", ".gguf", ".ckpt", ".onnx")


def companion_files(folder: str | Path) -> dict[str, Path]:
    """The companion files of the checkpoint in ``folder``: name relative to it, with "/", -> path.

    These are the COMPANIONS that exist, chat templates in additional_chat_templates/, further tokenizers of a
    processor (in qformer_tokenizer/, say), and the modules of sentence-transformers behind the model, such as
    1_Pooling and 2_Dense: their config.json and their model.safetensors, which reads what the model gives out and
    so fits as it is; a license and notices; and code of the checkpoint's own that its configs name, with the files
    that this imports or names in turn (`isomerge.checkpoint.own_code`), which is never run. Other weights,
    config.json, other code, pickles and optimizer states are never among them. A link may lead to a file of the
    same folder or of its repository in the hub's cache: what it leads to is copied into the output, and with it
    would be published. Raises IsomergeError when ``folder`` is no folder, and when a link leads elsewhere.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise IsomergeError(f"{folder}: no such folder; give an existing checkpoint folder")
    names = [name for name in COMPANIONS if (folder / name).is_file()]
    names += sorted(path.name for path in folder.iterdir() if _is_companion(path.name) and path.is_file())
    for path in sorted(folder.glob("*/*")):
        parent = path.parent.name
        template = parent == "additional_chat_templates" and path.suffix == ".jinja"
        module = path.name in ("config.json", "model.safetensors") and _MODULE_FOLDER.fullmatch(parent) is not None
        tokenizer = path.name in TOKENIZER_FILES and _TOKENIZER_FOLDER.fullmatch(parent) is not None
        if (template or module or tokenizer) and path.is_file():
            names.append(f"{parent}/{path.name}")
    if _others(folder, names):
        # few checkpoints have code, or files under names of their own
        from isomerge.checkpoint.own_code import named_files

        named = named_files(_configs(folder, names).values(), partial(_looked_up, folder))
        names += sorted(named - {*names})
    for name in names:
        check_link(folder, folder / name)
    return {name: folder / name for name in names}


def _is_companion(name: str) -> bool:
    """Whether a file travels by its kind: vocabularies of tiktoken, and what a license demands to go along."""
    return name.endswith(_TIKTOKEN) or (_TERMS.fullmatch(name) is not None and not _is_replaced(name))


def _is_replaced(name: str) -> bool:
    """Whether an output has a file of its own for one."""
    return name in _REPLACED or name.endswith(_OTHER_WEIGHTS)


def _looked_up(folder: Path, name: str) -> Path | None:
    """A file of a folder, or of a folder in it, that code may name; None where there is none."""
    if any(part.startswith(".") for part in name.split("/")) or _is_replaced(name):
        return None
    try:
        return folder / name if (folder / name).is_file() else None
    except OSError:  # a string that is no name
        return None


def _configs(folder: Path, names: Iterable[str]) -> dict[str, Path]:
    """Those of a folder's configs that may name code."""
    configs = (name for name in ("config.json", *names) if name.rpartition("/")[2] in _NAMING)
    return {name: folder / name for name in configs if (folder / name).is_file()}


def _others(folder: Path, names: Iterable[str]) -> list[str]:
    """What else lies in a folder, folders with a slash: neither hidden, nor weights, nor what an output has of its
    own."""
    tops = {name.partition("/")[0] for name in names}
    return [
        f"{path.name}/" if path.is_dir() else path.name
        for path in sorted(folder.iterdir())
        if path.name not in tops and not path.name.startswith((".", "alignment")) and not _is_replaced(path.name)
    ]


def left_behind(folder: Path) -> list[str]:
    """What a reader may miss in an output of the checkpoint in ``folder``, as sentences: files that are not copied,
    and code that ``auto_map`` names and that is not there."""
    if not folder.is_dir():
        return []
    copied = companion_files(folder)
    rest, configs, lacking = _others(folder, copied), _configs(folder, copied), list[str]()
    if any(b'"auto_map"' in path.read_bytes() for path in configs.values()):
        from isomerge.checkpoint.own_code import lacking_code

        lacking = lacking_code(configs.values(), partial(_looked_up, folder))
    more = f" and {len(rest) - 6} more" if len(rest) > 6 else ""
    notes = [f"not copied from {folder}, as no config or code there names it: {', '.join(rest[:6])}{more}"]
    return [
        *(notes if rest else ()),
        *(f"{folder}: auto_map names code that is not in the folder: {file}" for file in lacking),
    ]


def check_link(folder: Path, path: Path) -> None:
    """Raises IsomergeError where a link leads out of the folder and of its repository in the hub's cache."""
    target, home = path.resolve(), folder.resolve()
    roots = [home, *([home.parents[1] / "blobs"] if home.parent.name == "snapshots" else [])]
    if not any(target.is_relative_to(root) for root in roots):
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
        if path.name in known or path.suffix in (*WEIGHTS, ".py", _TIKTOKEN) or path.name.endswith(".index.json")
    ]


def is_tokenizer_file(name: str) -> bool:
    """Whether a companion file belongs to the tokenizer, chat templates included."""
    return name in TOKENIZER_FILES or name.endswith(_TIKTOKEN) or name.startswith("additional_chat_templates/")


def tokenizer_files(companions: Mapping[str, bytes | Path]) -> dict[str, bytes | Path]:
    """Those of a checkpoint's companion files that are its tokenizer's, code that it names included."""
    names = {name for name in companions if is_tokenizer_file(name)}
    if any(name.endswith(".py") for name in companions) and (config := companions.get("tokenizer_config.json")):
        from isomerge.checkpoint.own_code import named_files

        names |= named_files([config], companions.get)
    return {name: content for name, content in companions.items() if name in names}


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


PLAIN = {str, int, float, bool, type(None)}
"""Types of values that JSON writes in one line."""


def config_bytes(config: Mapping[str, Any], **changes: Any) -> bytes:
    """``config`` with ``changes`` applied, as the bytes of a config.json.

    UTF-8 with two-space indent, a final newline and the key order of ``config``; new keys come last. A
    change to None writes null. Raises IsomergeError when a value has no JSON form.
    """
    merged = {**config, **changes}
    try:
        return (_indented(merged) + "\n").encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise IsomergeError(f"config.json cannot be written: {error}; use plain JSON values only") from error


def _indented(value: Any, edge: str = "\n") -> str:
    """What ``json.dumps(value, indent=2)`` gives, which takes a hundred times as long for names of many classes:
    indented text is spelt in Python, all other in C.

    Args:
        value: what JSON has a form for.
        edge: the end of a line, and the indent of the line that ``value`` ends on.
    """
    if not value or not isinstance(value, (dict, list, tuple)):
        return json.dumps(value)
    below = f"{edge}  "
    parts = [*value.values()] if isinstance(value, dict) else value
    if {*map(type, parts)} <= PLAIN:
        text = json.dumps(value, separators=(f",{below}", ": "))
        return f"{text[0]}{below}{text[1:-1]}{edge}{text[-1]}"
    keys = [f"{json.dumps({key: 0})[1:-4]}: " for key in value] if isinstance(value, dict) else [""] * len(value)
    lines = [key + _indented(part, below) for key, part in zip(keys, parts, strict=True)]
    left, right = "{}" if isinstance(value, dict) else "[]"
    return f"{left}{below}{f',{below}'.join(lines)}{edge}{right}"
