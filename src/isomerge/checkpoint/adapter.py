"""A LoRA adapter on disk: which modules it changes, by which tensors, and how strongly.

A folder of peft has an ``adapter_config.json`` and an ``adapter_model.safetensors`` whose keys are
``base_model.model.<module>.lora_A.weight`` and so on (peft's documentation, "PEFT checkpoint format"). Files of
image models are opened by `isomerge.checkpoint.image_lora`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from isomerge.checkpoint.document import read_object
from isomerge.checkpoint.dtypes import FLOATS
from isomerge.checkpoint.header import TensorInfo
from isomerge.checkpoint.hub import local_folder
from isomerge.checkpoint.opening import open_tensors
from isomerge.checkpoint.reader import Checkpoint
from isomerge.checkpoint.weights import WeightFiles
from isomerge.errors import IsomergeError
from isomerge.records import Config, Json

ADAPTER_CONFIG = "adapter_config.json"
BASE = "base_model_name_or_path"
"""Its key for the model that it was trained on."""
ADAPTER_WEIGHTS = "adapter_model.safetensors"
ADAPTER_PICKLE = "adapter_model.bin"
PREFIX = "base_model.model."
MAX_PATTERNS = 1000
"""Most patterns of ranks, or of alphas, that a configuration may have."""
_REMEDY = "an adapter folder is what peft's save_pretrained writes"
# An adapter's own name may stand after the kind of tensor: files of old peft versions have ".default".
_PARTS = re.compile(
    r"(?P<module>.+)\.(?:lora_(?P<half>[AB])(?:\.\w+)?\.(?P<what>weight|bias)"
    r"|lora_embedding_(?P<table>[AB])(?:\.\w+)?"
    r"|(?P<magnitude>lora_magnitude_vector)(?:\.\w+)*)"
)
_TOKENS = re.compile(r"(?P<module>.+)\.token_adapter\.trainable_tokens_delta(?:\.\w+)?")
NO_TARGETS = "dummy-target-modules"
"""What peft wants for ``target_modules`` where an adapter has whole modules alone; it refuses an empty list."""
_WRAPPERS = re.compile(r"\.(?:base_layer|modules_to_save)(?=\.)(?:\.default(?=\.))?")
# What the file may set without changing what the two halves mean; anything else that is set is refused.
_UNSUPPORTED = (
    "layer_replication", "alora_invocation_tokens", "arrow_config", "kasa_config", "monteclora_config",
    "use_qalora", "use_bdlora",
)  # fmt: skip
_HARMLESS_STARTS = ("gaussian", "eva", "orthogonal")
"""Initialisations that leave the base weights alone; the others (PiSSA, OLoRA, ...) train against a changed
base."""


@dataclass
class Update:
    """What an adapter does to one module: names of tensors in its file, and the factor of their product."""

    module: str
    scaling: float
    rank: int
    embedding: bool = False
    parts: dict[str, str] = field(default_factory=dict)
    """``A``, ``B``, ``bias`` (of B) and ``magnitude`` (DoRA), by the keys of the file."""
    parameters: tuple[str, ...] = ()
    """The names of the parameters of which it may be the update (``target_parameters``; `parameters_of`)."""
    stack: int = 1
    """How many matrices the parameter has: ``A`` has the rows of all, matrix by matrix; ``B`` its columns, in which
    the matrix runs faster than the rank."""
    uncertain: bool = False
    """Whether its rank and factor hang on which of the parameters it is."""

    @property
    def depth(self) -> int:
        """How many other parameters of the same module were wrapped after this one."""
        return self.module.count(".base_layer")

    part: str = ""
    """Of an image LoRA: which of a pipeline's models has the module."""


@dataclass(frozen=True)
class Adapter:
    """An open adapter; no weights in memory.

    ``tensors`` reads its file by key, ``updates`` are the changed modules by their names without peft's prefix,
    ``saved`` maps names of whole tensors that replace the base's (or are new) to keys, and ``tokens`` names of
    tables to keys of the rows that replace those of some tokens, and to their numbers.

    Of an image LoRA, ``starts`` are the beginnings of names by the parts of a pipeline; ``updates`` are named by
    part and module, without dots.
    """

    ref: str
    tensors: Checkpoint
    updates: dict[str, Update]
    saved: dict[str, str]
    tokens: dict[str, tuple[str, list[int]]]
    starts: Mapping[str, str] = field(default_factory=dict)

    @property
    def file(self) -> Path:
        """The file of its weights, for messages."""
        return next(iter(self.tensors.tensors.values())).file

    @property
    def config(self) -> Json:
        """The parsed adapter_config.json."""
        return self.tensors.config

    def of_parameter(self, update: Update, name: str, stack: int) -> Update:
        """An update, now that its parameter and the number of its matrices are known."""
        rank, scaling = strength(self.tensors.folder / ADAPTER_CONFIG, self.config, name)
        return replace(update, rank=rank, scaling=scaling, stack=stack, uncertain=False)

    def wraps(self, name: str) -> bool:
        """Whether ``name`` is a tensor of one of the ``modules_to_save``."""
        modules = self.config.get("modules_to_save") or []
        return any(f".{module}." in f".{name}" for module in modules)


def is_adapter(folder: Path) -> bool:
    """Whether a folder holds an adapter."""
    return (folder / ADAPTER_CONFIG).is_file()


def open_adapter(ref: str | Path, *, allow_pickle: bool = False) -> Adapter:
    """Opens a LoRA adapter of peft: a folder, or a hub id ``org/name`` or ``org/name@revision``; reads no weights.

    Raises IsomergeError when there is none, it is damaged, it is of another kind than LoRA or uses an extension of
    LoRA that has no merged form here, or one of the two halves of a product is missing or of another rank.
    """
    folder = local_folder(ref, allow_pickle=allow_pickle)
    path = folder / ADAPTER_CONFIG
    config = read_object(path, remedy=_REMEDY, unique=False)
    _check_kind(path, config)
    tensors = open_tensors(str(ref), folder, config, _weights(folder, allow_pickle), others=(path,))
    updates: dict[str, Update] = {}
    saved: dict[str, str] = {}
    tokens: dict[str, tuple[str, list[int]]] = {}
    for key in tensors.tensors:
        name = key.removeprefix(PREFIX)
        parts = _PARTS.fullmatch(name)
        if parts:
            _collect(updates, path, config, parts, key)
        elif rows := _TOKENS.fullmatch(name):
            tokens[rows["module"]] = (key, _token_numbers(path, config, rows["module"], tensors.tensors[key]))
        elif ".original_module." not in name:  # what the module was before training
            if "lora_" in name or "token_adapter" in name:
                raise IsomergeError(
                    f"{tensors.tensors[key].file}: tensor {key!r} is no part of a LoRA adapter that is known here; "
                    "merge the adapter with peft's merge_and_unload instead"
                )
            plain = _WRAPPERS.sub("", name)
            if plain not in saved or name == plain:
                saved[plain] = key
    adapter = Adapter(str(ref), tensors, updates, saved, tokens)
    if not updates and not saved and not tokens:
        raise IsomergeError(f"{path}: the adapter has no tensors; {_REMEDY}")
    for update in updates.values():
        check_halves(adapter, update)
    return adapter


def _weights(folder: Path, allow_pickle: bool) -> WeightFiles:
    for name in (ADAPTER_WEIGHTS, ADAPTER_PICKLE):
        path = folder / name
        if path.is_file():
            if name == ADAPTER_PICKLE and not allow_pickle:
                raise IsomergeError(
                    f"{path} is a pickle, which can run code when it is loaded; save the adapter again with peft, "
                    "or pass --allow-pickle to load it with weights_only"
                )
            return WeightFiles(path, (path,), None, name == ADAPTER_PICKLE)
    raise IsomergeError(f"{folder} has no {ADAPTER_WEIGHTS}; {_REMEDY}")


def _check_kind(path: Path, config: Config) -> None:
    kind = config.get("peft_type")
    if kind != "LORA":
        raise IsomergeError(
            f"{path}: peft_type is {kind!r}, but only LORA adapters can be merged into weights here"
        )
    for key in _UNSUPPORTED:
        if config.get(key):
            raise IsomergeError(
                f"{path}: {key} is set, which has no merged form here; merge the adapter with peft's "
                "merge_and_unload and give the result"
            )
    start = config.get("init_lora_weights")
    if isinstance(start, str) and start.lower() not in _HARMLESS_STARTS:
        raise IsomergeError(
            f"{path}: init_lora_weights is {start!r}, which trains against changed base weights; save the adapter "
            "again with peft's path_initial_model_for_weight_conversion"
        )


def _collect(updates: dict[str, Update], path: Path, config: Config, parts: re.Match[str], key: str) -> None:
    """Puts one tensor of the file into the update that it belongs to."""
    module = parts["module"]
    if module not in updates:
        parameters = _parameters(config, module)
        rank, scaling = strength(path, config, (parameters or [module])[0])
        updates[module] = Update(module, scaling, rank, parameters=tuple(parameters))
    update = updates[module]
    update.embedding |= parts["table"] is not None
    part = "magnitude" if parts["magnitude"] else parts["half"] or parts["table"]
    if parts["what"] == "bias":
        part = "bias" if part == "B" else "bias of A"
    if part in update.parts:
        raise IsomergeError(
            f"{path.parent}: tensors {update.parts[part]!r} and {key!r} are the same part of one module; "
            "keep one adapter in a folder"
        )
    update.parts[part] = key


def _parameters(config: Config, module: str) -> list[str]:
    """The parameters of which a module's update may be, by ``target_parameters``: one of them, and the file does
    not say which; none where it is the update of the module's weight."""
    stem, said = module.replace(".base_layer", ""), config.get("target_modules")
    if stem == module and isinstance(said, list) and any(f".{stem}".endswith(f".{target}") for target in said):
        return []
    targets = [str(target).rpartition(".") for target in config.get("target_parameters") or ()]
    return [f"{stem}.{own}" for at, _, own in targets if not at or f".{stem}".endswith(f".{at}")]


def strength(path: Path, config: Config, name: str) -> tuple[int, float]:
    """The rank of the update of a module or a parameter, and the factor of its product."""
    rank = _pattern(path, config, "rank_pattern", name, config.get("r", 8))
    alpha = _pattern(path, config, "alpha_pattern", name, config.get("lora_alpha", 8))
    if type(rank) is not int or rank < 1 or not isinstance(alpha, int | float):
        raise IsomergeError(f"{path}: module {name} has rank {rank!r} and lora_alpha {alpha!r}; {_REMEDY}")
    # rank-stabilised LoRA (Kalajdzievski 2023) divides by the root of the rank
    return rank, alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)


def _token_numbers(path: Path, config: Config, module: str, rows: TensorInfo) -> list[int]:
    """The numbers of the tokens whose rows a table has of its own."""
    said = config.get("trainable_token_indices")
    if isinstance(said, dict):
        said = next((said[at] for at in said if f".{module}".endswith(f".{at}")), None)
    if not isinstance(said, list) or any(type(n) is not int or n < 0 for n in said) or len({*said}) < len(said):
        raise IsomergeError(f"{path}: trainable_token_indices must list token numbers for {module}; {_REMEDY}")
    if rows.shape[:1] != (len(said),):
        raise IsomergeError(
            f"{rows.file}: tensor {rows.name!r} has shape {list(rows.shape)}, but trainable_token_indices are "
            f"{len(said)} tokens (axis 0); check that the two files belong together"
        )
    return said


def _pattern(path: Path, config: Config, key: str, module: str, default: Any) -> Any:
    """The value of the first pattern, a regular expression for the end of a module's name, that fits."""
    patterns = config.get(key) or {}
    if not isinstance(patterns, dict) or len(patterns) > MAX_PATTERNS:
        raise IsomergeError(f"{path}: {key} must map at most {MAX_PATTERNS} patterns to numbers; {_REMEDY}")
    for pattern, value in patterns.items():
        try:
            if _compiled(pattern).match(module):
                return value
        except (re.error, RecursionError, OverflowError) as error:
            raise IsomergeError(
                f"{path}: {key} has {pattern!r:.200}, which is no regular expression that is taken here ({error})"
            ) from None
    return default


@lru_cache(MAX_PATTERNS)
def _compiled(pattern: str) -> re.Pattern[str]:
    """A pattern of a file that nobody vouches for: none that can take exponential time on a module's name."""
    if len(pattern) > 500 or re.search(r"\)\??[*+{]|\)\?", pattern) or len(re.findall(r"[*+?{]", pattern)) > 3:
        raise re.error("repeated groups, or more than three repetitions")
    return re.compile(rf"(.*\.)?({pattern})$")


def check_halves(adapter: Adapter, update: Update) -> None:
    """Refuse a module that lacks a half, or has halves of another rank or no numbers. Raises IsomergeError."""
    infos = adapter.tensors.tensors
    wanted = ["A", "B", *(["magnitude"] if adapter.config.get("use_dora") else [])]
    for part in wanted:
        if part not in update.parts:
            label = "lora_magnitude_vector" if part == "magnitude" else f"lora_{part}"
            raise IsomergeError(f"{adapter.file}: module {update.module} lacks its {label}; {_REMEDY}")
    if "bias of A" in update.parts:
        raise IsomergeError(f"{adapter.file}: tensor {update.parts['bias of A']!r} is no part of a LoRA adapter")
    for key in update.parts.values():
        if infos[key].dtype not in FLOATS.values():
            raise IsomergeError(f"{adapter.file}: tensor {key!r} is {infos[key].dtype}, expected floating point")
    says = "the other half has" if adapter.starts else f"{ADAPTER_CONFIG} says"
    if update.parameters:
        _count_matrices(adapter, update)
    for part, axis in (("A", 0), ("B", 1)):
        key = update.parts[part]
        shape = infos[key].shape
        if len(shape) < 2 or shape[axis] != update.rank * update.stack:
            raise IsomergeError(
                f"{adapter.file}: tensor {key!r} has shape {list(shape)}, but {says} rank "
                f"{update.rank} (axis {axis}); check that they belong together"
            )


def _count_matrices(adapter: Adapter, update: Update) -> None:
    """How many matrices the parameter of an update has, by the first rank that fits the tensor."""
    path = adapter.tensors.folder / ADAPTER_CONFIG
    rows = max((0, *adapter.tensors.tensors[update.parts["A"]].shape[:1]))
    strengths = [strength(path, adapter.config, name) for name in update.parameters]
    update.rank, update.scaling = next((x for x in strengths if rows % x[0] == 0), strengths[0])
    update.stack = max(1, rows // update.rank)
    update.uncertain = len({*strengths}) > 1
