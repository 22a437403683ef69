"""Architectures with experts into which dense models can be put: what `expert_targets.toml` says of each."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from isomerge.records import Json

Shared = Literal["none", "plain", "gated"]


@dataclass(frozen=True)
class ExpertTarget:
    """One architecture with experts; the file says what every key means."""

    model_type: str
    mergekit: str
    stem: str
    """What the names of its classes begin with."""
    sources: Mapping[str, str]
    shared: Shared
    router: str
    config: Mapping[str, Any]
    experts: Mapping[str, Sequence[str]]
    shared_experts: Mapping[str, Sequence[str]] = field(default_factory=dict)
    shared_gate: str | None = None
    zeros: Mapping[str, str] = field(default_factory=dict)

    @property
    def dense(self) -> list[str]:
        """What the names of the dense model's MLP have behind the layer, each once."""
        return list(dict.fromkeys(part for parts in self.experts.values() for part in parts))

    def is_called(self, name: str) -> bool:
        """Whether a recipe's `architecture` means it: the beginning of mergekit's name, or of the model type."""
        return any(known.lower().startswith(name.lower()) for known in (self.mergekit, self.model_type, self.stem))

    def settings(self, numbers: Mapping[str, int | float]) -> Json:
        """The keys of config.json that are set.

        Args:
            numbers: ``experts``, ``per_token``, ``neurons``, ``shared_neurons`` and ``score_scale``.
        """
        filled = {key: numbers.get(value[1:-1]) if _is_open(value) else value for key, value in self.config.items()}
        return {"model_type": self.model_type, **filled}

    def class_name(self, name: str, source: str) -> str:
        """The class for a dense model's class: ``LlamaForCausalLM`` becomes ``MixtralForCausalLM``."""
        return self.stem + name.removeprefix(self.sources[source])


def _is_open(value: Any) -> bool:
    return isinstance(value, str) and value.startswith("{") and value.endswith("}")


@cache
def expert_targets() -> tuple[ExpertTarget, ...]:
    """All of them, in the order in which they are tried."""
    text = files("isomerge.archs").joinpath("expert_targets.toml").read_text(encoding="utf-8")
    return tuple(
        ExpertTarget(model_type=kind, stem=said.pop("class"), **said) for kind, said in tomllib.loads(text).items()
    )
