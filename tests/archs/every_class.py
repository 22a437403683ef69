"""Every class of transformers that a spec covers, as a tiny random model: what it returns, and whether symmetries
leave all of it."""

from __future__ import annotations

import copy
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers as tf

from archs.test_heads import asked
from families.gemma_multimodal import filled
from isomerge.archs import spec_texts
from isomerge.evidence.law import random_turn
from isomerge.evidence.outputs import differences, returned
from isomerge.models.free_streams import unread_gains
from isomerge.models.recognised import recognise
from isomerge.models.unit_plan import make_plan
from isomerge.symmetry.alignment import Alignment
from toy_runs import in_default, in_double, in_width, with_caches_by_layer, without_chance
from toys import TOYS, load_toy, randomise, tensors, write_toy

ABSTRACT = re.compile("Pre[Tt]rainedModel|^Pretrained")
"""Names of classes that others are made of."""


def classes_of(config: Any) -> list[type[tf.PreTrainedModel]]:
    """The public classes that are made from a config of this type, in the module that it comes from."""
    package = type(config).__module__.rpartition(".")[0]
    found: dict[str, type[tf.PreTrainedModel]] = {}
    for file in pkgutil.iter_modules(importlib.import_module(package).__path__):
        if not file.name.startswith("modeling_"):
            continue
        for name, kind in vars(importlib.import_module(f"{package}.{file.name}")).items():
            known = inspect.isclass(kind) and issubclass(kind, tf.PreTrainedModel) and hasattr(tf, name)
            if known and kind.config_class is type(config) and not ABSTRACT.search(name):
                found[name] = kind
    return list(found.values())


def configs_of(config: Any) -> Iterator[Any]:
    """A config and those of its parts that have a spec."""
    yield config
    for value in vars(config).values():
        if isinstance(value, tf.PreTrainedConfig) and value.model_type in spec_texts():
            yield from configs_of(value)


def every_config() -> dict[str, Any]:
    """A tiny config for every class of configs, from the toys, and the toy that it comes from."""
    found: dict[str, tuple[str, Any]] = {}
    parts: dict[str, tuple[str, Any]] = {}
    for name, (build, _) in TOYS.items():
        model = build()
        if not isinstance(model, tf.PreTrainedModel):
            continue
        own, *others = configs_of(model.config)
        found.setdefault(type(own).__name__, (name, own))
        for part in others:
            parts.setdefault(type(part).__name__, (name, part))
    return {**parts, **found}


def made(kind: type[tf.PreTrainedModel], config: Any, folder: Path, seed: int = 3) -> dict[str, torch.Tensor]:
    """A random model of a class, saved; what it is asked."""
    config = copy.deepcopy(config)
    config.num_labels = 2 if "QuestionAnswering" in kind.__name__ else 4
    if getattr(config, "pad_token_id", None) is None:
        config.pad_token_id = 0
    with in_default(config):
        model = filled(kind(config).double().eval())
    randomise(model, seed)
    model.tie_weights()
    model.save_pretrained(folder)
    return asked(config, kind)


def everything(kind: Any, folder: Path, given: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """All that a saved model of a class returns by default, in the stored dtype."""
    dtype = next(t.dtype for t in tensors(folder).values() if t.is_floating_point())
    model = in_width(kind.from_pretrained(folder, dtype=dtype, experts_implementation="eager"), dtype).eval()
    config = model.config
    with (
        torch.no_grad(),
        in_double(config),
        in_default(config),
        with_caches_by_layer(config),
        without_chance(config),
    ):
        torch.manual_seed(0)
        return returned(model(**{k: v.to(dtype) if v.is_floating_point() else v for k, v in given.items()}))


def moved(toy: str, folder: Path, out: Path, spaces: str, seed: int = 1) -> Path:
    """A copy of a saved model, moved by a random element of all that ``--spaces`` lets act on it, written by the
    real writer."""
    plain, model = load_toy(toy, folder), recognise(folder)
    chosen = make_plan(model, [], spaces).selection
    spec, unread = chosen.frame or chosen.spec, unread_gains([model])
    blocks, rng = plain.fresh(), torch.Generator().manual_seed(seed)
    g = random_turn(spec, plain.blocks, blocks.__getitem__, rng, gains=chosen.frame is not None)
    stages = [Alignment(spec, {k: x for k, x in stage.elements.items() if k not in unread}) for stage in g.stages]
    for stage in stages:
        stage.act(blocks)
    return write_toy(plain, plain.named(blocks), out)


def changes(kind: Any, toy: str, folder: Path, given: Mapping[str, torch.Tensor], spaces: str) -> dict[str, float]:
    """By how much all that a class returns changes with a random element of all that ``--spaces`` lets act."""
    old = everything(kind, folder, given)
    return differences(old, everything(kind, moved(toy, folder, folder.with_name(spaces), spaces), given))
