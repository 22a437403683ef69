"""Which layers of a model an image LoRA changes: by the model's own names, as a file's may have no dots, and may be
those of the layout in which the model was trained."""

from __future__ import annotations

import difflib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property, partial
from typing import NamedTuple

from torch import Tensor

from isomerge.checkpoint.adapter import Adapter, Update
from isomerge.checkpoint.file_piece import SWAPPED, Piece, rows
from isomerge.checkpoint.image_lora import MAIN, lora_file, open_image_lora
from isomerge.checkpoint.pipeline import Pipeline
from isomerge.checkpoint.reader import Checkpoint, Derived
from isomerge.checkpoint.single_file_names import count_of, unet_rules
from isomerge.checkpoint.single_file_transformers import LAYOUTS
from isomerge.errors import IsomergeError

BODY = "text_model_"
"""What versions of transformers put before the names of CLIP's layers, or do not."""


class Layer(NamedTuple):
    """What a layer of a file is in a model: layers, one after the other in its rows, and whether the halves of
    these change places."""

    modules: tuple[str, ...]
    swapped: bool = False


class Layers:
    """The layers of a model, by names without dots.

    Args:
        model: the model.
    """

    def __init__(self, model: Checkpoint) -> None:
        self.model = model
        self.shapes = model.shapes
        self.own: dict[str, set[Layer]] = defaultdict(set)
        for name, shape in self.shapes.items():
            if name.endswith(".weight") and len(shape) > 1:
                self.own[_flat(module := name.removesuffix(".weight"))].add(Layer((module,)))

    @cached_property
    def original(self) -> dict[str, set[Layer]]:
        """By the names of the layouts in which models of its kind were trained."""
        layers: dict[str, set[Layer]] = defaultdict(set)
        for layout in LAYOUTS:
            if self.model.config.get("_class_name") == layout.kind:
                for name, modules, swapped in layout.modules(self.shapes):
                    layers[_flat(name)].add(Layer(tuple(modules), swapped))
        heights, depth = count_of(self.shapes, "down_blocks."), count_of(self.shapes, "down_blocks.0.resnets.")
        rules = list(unet_rules(heights, depth)) if depth else []
        for known in [layer for layers in self.own.values() for layer in layers]:
            name = f"{known.modules[0]}."
            for old, new in rules:
                if name.startswith(new):
                    layers[_flat(old + name[len(new) :]).rstrip("_")].add(known)
        return layers

    def find(self, module: str) -> Layer | None:
        """The layers that one of a file is; None where there are none of its name.

        Raises:
            IsomergeError: several have it, without their dots.
        """
        flat = _flat(module)
        for word in (flat, flat.removeprefix(BODY), BODY + flat):
            if named := self.own.get(word) or self.original.get(word):
                exact = [layer for layer in named if layer.modules == (module,)] or list(named)
                if len(exact) > 1:
                    raise IsomergeError(
                        f"{self.model.ref}: {' and '.join(sorted(each.modules[0] for each in exact))} are one name "
                        f"without dots, {flat}, which is all that the LoRA says: give one with dots (diffusers')"
                    )
                return exact[0]
        return None


def _flat(name: str) -> str:
    return name.replace(".", "_")


def for_model(adapter: Adapter, model: Checkpoint) -> Adapter:
    """What an image LoRA has for one model, by the names of its layers: for a file with parts for several, that of
    whose layers the model has the most.

    Raises:
        IsomergeError: the model lacks a layer, or layers of several parts are all its own.
    """
    layers = Layers(model)
    parts = {part: [u for u in adapter.updates.values() if u.part == part] for part in adapter.starts}
    lacking = {part: [u for u in updates if layers.find(u.module) is None] for part, updates in parts.items()}
    whole = [part for part, missing in lacking.items() if not missing]
    best = min(lacking, key=lambda part: len(lacking[part]) / len(parts[part]))
    if len(whole) > 1:
        best = next((part for part in whole if model.folder.name == part), "")
        if not best:
            raise IsomergeError(
                f"{adapter.file} has {' and '.join(whole)}, and all their layers are in {model.ref}: say which is "
                f"meant, {adapter.file}:{whole[0]}"
            )
    if lacking[best]:
        module = lacking[best][0].module
        near = difflib.get_close_matches(_flat(module), layers.own, n=1)
        hint = f" (the nearest is {next(iter(layers.own[near[0]])).modules[0]!r})" if near else ""
        raise IsomergeError(
            f"{adapter.file}: layer {adapter.starts[best]}{module} is none of {model.ref}{hint}; check that the "
            "LoRA is for this model"
        )
    derived: dict[str, Derived] = {}
    updates: dict[str, Update] = {}
    for update in parts[best]:
        layer = layers.find(update.module)
        assert layer is not None
        for own in _of_layers(adapter, update, layer, layers.shapes, derived):
            if own.module in updates:
                raise IsomergeError(
                    f"{adapter.file}: two of its layers change {own.module} of {model.ref}: keep one"
                )
            updates[own.module] = own
    tensors = adapter.tensors.derive(derived, origin="rows") if derived else adapter.tensors
    return replace(adapter, tensors=tensors, updates=updates)


def _of_layers(
    adapter: Adapter,
    update: Update,
    layer: Layer,
    shapes: Mapping[str, tuple[int, ...]],
    derived: dict[str, Derived],
) -> Iterator[Update]:
    """The update of each of the layers that a file's layer is; rows of its tensors become tensors of their own."""
    if len(layer.modules) == 1 and not layer.swapped:
        yield replace(update, module=layer.modules[0])
        return
    counts = [shapes[f"{module}.weight"][0] for module in layer.modules]
    updates = {module: replace(update, module=module, parts=dict(update.parts)) for module in layer.modules}
    for part, key in update.parts.items():
        if part == "A":  # which reads the same for all
            continue
        info = adapter.tensors.tensors[key]
        pieces = rows(key, info.shape, zip(layer.modules, counts, strict=True))
        if not pieces:
            raise IsomergeError(
                f"{adapter.file}: tensor {key!r} has {info.shape[0]} rows, and {' and '.join(layer.modules)} "
                f"have {sum(counts)} together; check that the LoRA is for this model"
            )
        for module, piece in pieces.items():
            name = updates[module].parts[part] = f"{key} {module}"
            turned = replace(piece, turn=SWAPPED if layer.swapped else "")
            derived[name] = Derived(piece.info(name, info), partial(_rows, adapter.tensors, turned))
    yield from updates.values()


def _rows(tensors: Checkpoint, piece: Piece) -> Tensor:
    return piece.turned(tensors.read(piece.name)[piece.first : piece.first + piece.stored[0]]).clone()


def with_lora(pipeline: Pipeline, ref: str) -> Pipeline:
    """A pipeline whose components have the parts of an image LoRA: each is at that which has its name, or else at
    one that has all its layers.

    Raises:
        IsomergeError: it is no image LoRA, or no component has the layers of a part.
    """
    if (image := lora_file(ref)) is None:
        raise IsomergeError(
            f"{ref} is an adapter for one model, and {pipeline.ref} has several: name that component's folder, as "
            f"in {pipeline.folder}/unet+{ref}"
        )
    file = image[0]
    adapter = open_image_lora(ref, *image)
    components = dict(pipeline.components)
    known: dict[str, Layers] = {}
    for part in adapter.starts:
        wanted = [update.module for update in adapter.updates.values() if update.part == part]
        named = [name for name, each in components.items() if each.has_weights]
        named.sort(key=lambda name: (name not in ("unet", "transformer") if part == MAIN else name != part, name))
        for name in named:
            layers = known.setdefault(name, Layers(components[name].opened()))
            if all(layers.find(module) for module in wanted):
                components[name] = replace(
                    components[name], adapters=(*components[name].adapters, f"{file}:{part}")
                )
                break
        else:
            for_model(
                open_image_lora(f"{file}:{part}", file, part), components[named[0]].opened()
            )  # says what it lacks
    return replace(pipeline, components=components)
