"""What a checkpoint is fed and what it predicts, by its config.json alone."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from torch import Tensor

from isomerge.archs import is_behind_padding
from isomerge.config.keys import POSITIONS
from isomerge.errors import IsomergeError

Task = Literal["classes", "tokens", "causal", "masked", "replaced", "seq2seq"]
Kind = Literal["classes", "labels", "values"]
DISCRIMINATORS = ("ElectraForPreTraining", "FunnelForPreTraining")
"""Heads with one logit [n, length] per token: whether it was replaced."""
BYTES = 256
"""The vocabulary of a model that reads raw bytes."""


@dataclass(frozen=True)
class Inputs:
    """The inputs of one checkpoint; ``config`` is its parsed config.json."""

    config: Mapping[str, Any]

    @cached_property
    def architecture(self) -> str:
        """The class in ``architectures``; empty where there is none."""
        named = self.config.get("architectures")
        return str(named[0]) if isinstance(named, list) and named else ""

    @cached_property
    def task(self) -> Task:
        """What is predicted: one class per example (also where no head is known), a class or a token per position,
        or for every token whether it was replaced.

        Decided by the ending of the class in ``architectures`` and ``is_encoder_decoder``.
        """
        name = self.architecture
        if "Classification" in name:
            return "tokens" if "ForTokenClassification" in name else "classes"
        if self.config.get("is_encoder_decoder") and "vocab_size" in self.config:
            return "seq2seq"
        if self.composite and name.endswith("ForConditionalGeneration"):
            return "causal"
        if name in DISCRIMINATORS:
            return "replaced"
        if name.endswith("ForMaskedLM") or (name.endswith("ForPreTraining") and not self.images):
            return "masked"
        return "causal" if name.endswith(("ForCausalLM", "LMHeadModel", "LMHead")) else "classes"

    @cached_property
    def composite(self) -> bool:
        """Whether it is made of models for texts and for images."""
        return any(isinstance(self.config.get(part), Mapping) for part in ("text_config", "vision_config"))

    def _part(self, name: str, key: str) -> Mapping[str, Any]:
        """The config of one of the models that it is made of, with the defaults that config.json leaves out; where
        there is none, the whole config."""
        part = self.config.get(name)
        if not isinstance(part, Mapping) or part.get(key):
            return part if isinstance(part, Mapping) else self.config
        import transformers

        # whatever fails: a model type that this version does not know, a config of another age
        with contextlib.suppress(Exception):
            whole = transformers.AutoConfig.for_model(**{**self.config, "model_type": self.config["model_type"]})
            return whole.to_dict()[name]
        return part

    @cached_property
    def text(self) -> Mapping[str, Any]:
        """The config of what reads text."""
        return self._part("text_config", "vocab_size")

    @cached_property
    def image_token(self) -> int | None:
        """The token that stands for an image, or a piece of one, in a text; None where images are read beside
        texts."""
        tokens = (self.config.get(key) for key in ("image_token_id", "image_token_index"))
        return next((int(token) for token in tokens if isinstance(token, int)), None)

    @cached_property
    def images(self) -> bool:
        """Whether it reads images rather than tokens."""
        if self.composite:
            return "ForImageClassification" in self.architecture
        return "vocab_size" not in self.config and "image_size" in self.config

    @cached_property
    def pairs(self) -> bool:
        """Whether it reads texts, and images beside them."""
        return not self.images and isinstance(self.config.get("vision_config"), Mapping)

    @cached_property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels (3 unless it says otherwise), height, width of its images."""
        config = self._part("vision_config", "image_size")
        size = config.get("image_size")
        if not size:
            raise IsomergeError(
                "config.json tells no image_size, so images cannot be brought to one: give texts alone, or "
                "pixel_values"
            )
        height, width = size if isinstance(size, (list, tuple)) else (size, size)
        return int(config.get("num_channels", 3)), int(height), int(width)

    @cached_property
    def class_ids(self) -> dict[str, int]:
        """From class names to ids: ``label2id``, or its inverse; a config without them has two classes."""
        names = self.config.get("label2id") or {v: k for k, v in (self.config.get("id2label") or {}).items()}
        if names:
            return {str(name): int(number) for name, number in names.items()}
        return {f"LABEL_{number}": number for number in range(int(self.config.get("num_labels", 2)))}

    @cached_property
    def outputs(self) -> int:
        """How many numbers a classifier or regressor gives for an example (or a token), at least one."""
        return max(1, len(self.config.get("id2label") or self.class_ids))

    def kind(self, labels: Tensor | None = None) -> Kind:
        """What the outputs are: one class of several, several labels that may hold at once, or values.

        As the heads of transformers choose: by ``problem_type``; where it is missing, one output is a value, and
        labels that are floating point are several at once. A single output is never one class of several, as its
        probability would be 1 whatever the model.

        Args:
            labels: of the data, where there are some.
        """
        if self.task == "replaced":
            return "labels"
        if self.task == "tokens":
            return "values" if self.outputs == 1 else "classes"
        if self.task != "classes":
            return "classes"
        problem = self.config.get("problem_type")
        if problem == "multi_label_classification":
            return "labels"
        if problem == "regression" or self.outputs == 1:
            return "values"
        return "labels" if problem is None and labels is not None and labels.is_floating_point() else "classes"

    def class_id(self, label: Any, where: str) -> int:
        """The id of a label: an id, its text, or a name in ``label2id``.

        Raises:
            IsomergeError: the checkpoint has no such class.
        """
        ids = self.class_ids
        if isinstance(label, str) and label in ids:
            return ids[label]
        if isinstance(label, str) and label.strip().isdecimal():
            label = int(label)
        whole = isinstance(label, int) or (isinstance(label, float) and label.is_integer())
        if whole and not isinstance(label, bool) and int(label) in ids.values():
            return int(label)
        known = ", ".join(list(ids)[:6]) + (", ..." if len(ids) > 6 else "")
        raise IsomergeError(
            f"{where}: label {str(label)[:60]!r} is no class of this checkpoint; "
            f"use an id from 0 to {max(ids.values())} or a name of label2id in config.json ({known})"
        )

    @cached_property
    def positions(self) -> int | None:
        """The longest input in tokens, where config.json sets a bound."""
        rows = next((int(self.text[k]) for k in POSITIONS if isinstance(self.text.get(k), int)), None)
        if rows is None or not is_behind_padding(self.text.get("model_type")):
            return rows
        pad = self.token("pad_token_id")
        return rows - (1 if pad is None else pad) - 1

    def token(self, name: str) -> int | None:
        """A special token's id in config.json, such as ``pad_token_id``; the first of several."""
        value = self.text.get(name) if self.config.get(name) is None else self.config[name]
        value = value[0] if isinstance(value, list) and value else value
        return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None

    @cached_property
    def vocabulary(self) -> int:
        """The number of tokens; 0 where config.json has none."""
        return int(self.text.get("vocab_size") or 0)
