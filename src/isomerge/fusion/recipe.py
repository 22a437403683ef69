"""Merge recipes: mergekit's YAML for the methods that exist here, with one block of our own, ``align``."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from isomerge.errors import IsomergeError


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ModelParameters(_Strict):
    """Parameters of one model."""

    weight: float = 1.0


class ModelEntry(_Strict):
    """One model of a recipe."""

    model: str
    parameters: ModelParameters = ModelParameters()


class AlignBlock(_Strict):
    """What is aligned before merging and by what evidence; ``enabled: false`` is ``--no-align``.

    The keys are the options of the command line. ``stats`` has one file per model, in their order;
    ``permutations`` is ``--learn-permutations``.
    """

    enabled: bool = True
    anchor: Literal["first", "none"] = "first"
    spaces: str | None = None
    layers: str | None = None
    untie: bool = False
    data: str | None = None
    stats: list[str] | None = None
    evidence: str | None = None
    functional: bool | None = None
    search: float | None = None
    learn: str | None = None
    learn_effort: str | None = None
    learn_target: str | None = None
    steps: int | None = None
    permutations: bool | None = None
    batch_size: int | None = None
    device: str | None = None
    precision: str | None = None
    gradient_checkpointing: bool | None = None
    limit: int | None = None
    length: int | None = None
    seed: int | None = None

    def matching(self) -> dict[str, Any]:
        """What is set of the evidence, by the names of `isomerge.align`'s arguments."""
        own = {"enabled", "anchor", "spaces", "layers", "untie", "stats"}
        found = self.model_dump(exclude=own, exclude_none=True)
        if self.stats:
            found |= {"stats_anchor": self.stats[0], "stats_src": self.stats[1:]}
        return found


class GlobalParameters(_Strict):
    """Parameters of the method."""

    normalize: bool = True


class Recipe(_Strict):
    """A merge recipe."""

    models: list[ModelEntry]
    merge_method: str
    parameters: GlobalParameters = GlobalParameters()
    dtype: Literal["float32", "float16", "bfloat16", "float64"] | None = None
    align: AlignBlock = AlignBlock()


def read_recipe(path: str | Path) -> Recipe:
    """Read and check a recipe.

    Raises:
        IsomergeError: the file cannot be read, is no YAML, or has an unknown or misspelt key (with a suggestion).
    """
    import yaml

    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise IsomergeError(f"{path}: cannot read this recipe ({error})") from None
    except yaml.YAMLError as error:
        raise IsomergeError(f"{path}: not valid YAML ({str(error).splitlines()[0]})") from None
    if not isinstance(content, dict):
        raise IsomergeError(f"{path}: a recipe is a mapping with `models` and `merge_method`")
    try:
        return Recipe.model_validate(content)
    except ValidationError as error:
        raise IsomergeError(f"{path}: {_explain(_most_telling(error.errors()))}") from None


def _most_telling(errors: Sequence[Any]) -> Any:
    """A misspelt key explains the missing one beside it."""
    return next((e for e in errors if e["type"] == "extra_forbidden"), errors[0])


def _explain(error: Any) -> str:
    where = ".".join(str(part) for part in error["loc"])
    if error["type"] != "extra_forbidden":
        return f"`{where}`: {error['msg'][0].lower()}{error['msg'][1:]}"
    known = _keys_at(error["loc"][:-1])
    near = get_close_matches(str(error["loc"][-1]), known, 1)
    hint = f"did you mean `{near[0]}`?" if near else f"known are {', '.join(known)}"
    return f"unknown key `{where}`: {hint}"


def _keys_at(path: tuple[Any, ...]) -> list[str]:
    """The keys that are allowed at a place of the recipe."""
    kind: Any = Recipe
    for part in path:
        kind = ModelEntry if isinstance(part, int) else kind.model_fields[part].annotation
    return list(kind.model_fields) if hasattr(kind, "model_fields") else []
