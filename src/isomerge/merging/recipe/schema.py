"""Merge recipes: mergekit's YAML, checked to the last key, with one block of our own, ``align``.

A recipe without that block is mergekit's and gives what mergekit gives: nothing is aligned. What is wrong with one
is told in one sentence: the place, what is expected there, and the key that was probably meant.
"""

from __future__ import annotations

import os
import re
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, TypeGuard, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    create_model,
    field_validator,
    model_validator,
)

from isomerge.checkpoint.dtypes import SHORT
from isomerge.checkpoint.vocabulary import NEIGHBOURS
from isomerge.checkpoint.yaml_text import read_documents, read_yaml
from isomerge.errors import IsomergeError, with_points
from isomerge.fusion.registry import is_parameter
from isomerge.merging.recipe.recipe_modules import of_one_module
from isomerge.merging.recipe.recipe_steps import Step
from isomerge.observe.prompt_rows import WAYS
from isomerge.options import MatchingOptions
from isomerge.options.option import kind_of
from isomerge.options.requests.merging import Merge
from isomerge.records import Json
from isomerge.run.provenance import FORM

Dtype = Literal["float32", "float16", "bfloat16", "float64"]
ELSEWHERE = {
    "lora": "write an adapter behind its model, `model: MODEL+LORA`",
    "revision": "write a revision behind its model, `model: org/name@REVISION`",
}
"""Keys that people write beside `model`, and what says the same."""
EXAMPLES = {
    "merge_method": "linear",
    "model": "org/name",
    "layer_range": "[0, 4]",
    "models": "[{model: org/a}, {model: org/b}]",
}
"""Values of keys that are left out, or written otherwise."""


def keys_of(schema: type[BaseModel]) -> list[str]:
    """The keys of a text of this schema, as people write them."""
    return [field.alias or name for name, field in schema.model_fields.items()]


class Strict(BaseModel):
    """A mapping whose keys are all known."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _without_empty_keys(cls, value: Any) -> Any:
        """A key with nothing behind it says nothing, as in mergekit; but an empty ``align`` would leave open what
        it wants."""
        if not isinstance(value, dict):
            return value
        known = keys_of(cls)
        return {k: v for k, v in value.items() if v is not None or k not in known or k == "align"}


def _reference(value: Any) -> Any:
    """mergekit's long form of a reference, ``{model: {path, revision}, lora: {path, revision}}``, in one string."""
    if not isinstance(value, dict):
        return value
    parts = []
    for key in ("model", "lora"):
        part = value.get(key)
        if part is None:
            continue
        if isinstance(part, str):
            parts.append(part)
        elif isinstance(part, dict) and isinstance(part.get("path"), str) and set(part) <= {"path", "revision"}:
            parts.append(part["path"] + (f"@{part['revision']}" if part.get("revision") else ""))
    if not parts or not set(value) <= {"model", "lora", "override_architecture"} or "model" not in value:
        raise ValueError("a model is a name such as org/name@revision+lora, or {model: {path: ..., revision: ...}}")
    return "+".join(parts)


Reference = Annotated[str, BeforeValidator(_reference)]
"""A model's name, in either form."""


class ModelEntry(Strict):
    """One model of a recipe; ``stats`` is its file of `isomerge stats`, for methods that need one; ``base_model``
    is what it was tuned from, where that is not the recipe's base, onto which its task vector is then moved."""

    model: Reference
    base_model: Reference | None = None
    parameters: Json = {}
    stats: str | None = None


class SourceEntry(Strict):
    """Some layers of one model: ``[first, last)``."""

    model: Reference
    layer_range: tuple[int, int]
    parameters: Json = {}


class SliceEntry(Strict):
    """Layers of the output, made of as many layers of every source; ``residual_weight`` is left out with a note
    (mergekit reads it and does nothing with it)."""

    sources: list[SourceEntry]
    base_model: Reference | None = None
    residual_weight: float | None = None
    parameters: Json = {}


class SlicedEntry(Strict):
    """Of models of several stacks of layers: the module whose layers ``slices`` are, and which layers all models
    keep of another module. Recipes say it by ``modules``; the recipe of one module's merge says it so."""

    module: str | None = None
    layers: dict[str, list[tuple[int, int]]] = {}


class TokenEntry(Strict):
    """Where one token's embedding comes from."""

    source: Any = None
    force: bool = False


class TokenizerEntry(Strict):
    """The output's vocabulary: ``base``, ``union`` or a model's."""

    source: str = "union"
    tokens: dict[str, TokenEntry] = {}
    pad_to_multiple_of: int | None = None
    missing: str = "copy"
    neighbours: int = NEIGHBOURS


_FILES = ("stats_src", "stats_anchor")
"""Options of a match that a recipe lists as one, ``stats``."""
_OF_MATCH = {name: row for name, row in MatchingOptions.declared().items() if name not in _FILES}
_KEYS: dict[str, Any] = {name: (kind_of(*row) | None, None) for name, row in _OF_MATCH.items()}
_KEYS |= {"enabled": (bool | Literal["auto"], "auto")}
_KEYS |= {
    name: (key.kind or kind_of(*Merge.declared()[name]), Merge.defaults()[name])
    for name, key in Merge.recipe_keys().items()
    if name not in _OF_MATCH
}
_Keys: Any = create_model("_Keys", __base__=Strict, **_KEYS)
"""The keys of `align` that are options: those of a match are as on the command line, or left out."""


class AlignBlock(_Keys):
    """What is aligned before merging and by what evidence; ``enabled: false`` is ``--no-align``,
    ``enabled: true`` is ``--align``; ``auto``, the default of a block, leaves models alone that are aligned
    already.

    The keys are the options of the command line. ``onto`` is a model of the recipe, by its name there; ``stats``
    has one file per model, in their order, the base first where there is one; ``data``, ``learn``
    and ``repair`` are no Python functions: a recipe runs no code. With ``merge_base: false`` a ``base_model`` that
    is not among ``models`` is not merged with them, by methods that know no base: it gives config and tokenizer
    alone.
    """

    stats: list[str] | None = None

    def matching(self) -> Json:
        """What is set of the evidence, by the names of `isomerge.align`'s arguments."""
        settings = self.model_dump(include={*_OF_MATCH}, exclude_none=True)
        if self.stats:
            settings |= {"stats_anchor": self.stats[0], "stats_src": self.stats[1:]}
        return settings

    @field_validator("enabled", mode="wrap")
    @classmethod
    def _switch(cls, value: Any, check: ValidatorFunctionWrapHandler) -> bool | str:
        """One mistake, at the key: not one for every kind of value that it may have."""
        try:
            checked: bool | str = check(value)
        except ValidationError:
            raise ValueError("input should be a valid boolean, or auto") from None
        return checked


class _Aligning(Strict):
    """How keys are read that recipes of every kind have; each declares them, in the order that is told."""

    @field_validator("dtype", "out_dtype", mode="before", check_fields=False)
    @classmethod
    def _torchs(cls, value: Any) -> Any:
        name = value.removeprefix("torch.") if isinstance(value, str) else value
        if isinstance(name, str) and SHORT.get(name.lower(), name) != name:
            raise ValueError(f"{name} is no dtype here: did you mean {SHORT[name.lower()]}?")
        return name

    @field_validator("checksums", check_fields=False)
    @classmethod
    def _of_their_form(cls, value: list[str | None]) -> list[str | None]:
        if not all(checksum is None or FORM.fullmatch(checksum) for checksum in value):
            raise ValueError("write crc32: and eight hexadecimal digits for a model, or null")
        return value

    @field_validator("align", mode="before", check_fields=False)
    @classmethod
    def _switch(cls, value: Any) -> Any:
        return {"enabled": value} if isinstance(value, bool) or value == "auto" else value

    @field_validator("imports", mode="before", check_fields=False)
    @classmethod
    def _one_import(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value


class Recipe(_Aligning):
    """A merge recipe; exactly one of ``models`` and ``slices``. ``name`` is what mergekit-multi calls a step by;
    nothing depends on it. ``checksums`` are those of the models that it was made with
    (`isomerge.run.provenance.weights_checksums`), the base first and source bases last: where a model has another
    one, that is told.
    ``import`` names modules or files of Python that the merge needs: whoever runs it must name them as well
    (``--import``), as a recipe runs no code."""

    models: list[ModelEntry] | None = None
    slices: list[SliceEntry] | None = None
    merge_method: str
    base_model: Reference | None = None
    parameters: Json = {}
    dtype: Dtype | None = None
    out_dtype: Dtype | None = None
    tokenizer_source: str | None = None
    tokenizer: TokenizerEntry | None = None
    chat_template: str | None = None
    sliced: SlicedEntry = SlicedEntry()
    name: str | None = None
    checksums: list[str | None] = []
    align: AlignBlock = AlignBlock(enabled=False)
    imports: list[str] = Field(default=[], alias="import")
    """The modules and files that the merge needs."""

    @property
    def written_dtype(self) -> str | None:
        """The dtype of the output: mergekit's ``dtype`` where ``out_dtype`` does not say another. Sums are always
        float32 or float64."""
        return self.out_dtype or self.dtype

    def model_names(self) -> list[str]:
        """The models, in the order of their first mention; the base where it stands among them."""
        entries = self.models or [source for part in self.slices or () for source in part.sources]
        return list(dict.fromkeys(entry.model for entry in entries))


class ExpertEntry(Strict):
    """A dense model whose MLPs become one expert of every layer, and what is typical of it."""

    source_model: Reference
    positive_prompts: list[str] = []
    negative_prompts: list[str] = []
    noise_scale: float | None = None
    residual_scale: float | None = None


class ExpertsRecipe(_Aligning):
    """A document of mergekit-moe, as it is, with `align` and `checksums` as in a `Recipe`."""

    base_model: Reference
    experts: list[ExpertEntry]
    gate_mode: Literal[*WAYS] = "hidden"  # pyright: ignore[reportInvalidTypeForm]
    dtype: Dtype | None = None
    experts_per_token: int = 2
    shared_experts: list[ExpertEntry] = []
    architecture: str | None = None
    merge_method: Literal["moe"] = "moe"
    name: str | None = None
    checksums: list[str | None] = []
    align: AlignBlock = AlignBlock(enabled=False)
    imports: list[str] = Field(default=[], alias="import")
    """The modules and files that the merge needs."""

    def entries(self) -> list[ExpertEntry]:
        """All experts, the shared ones last."""
        return [*self.experts, *self.shared_experts]

    def model_names(self) -> list[str]:
        """The base, then the experts' models, each once."""
        return list(dict.fromkeys([self.base_model, *(entry.source_model for entry in self.entries())]))


GENOME = "genome"
"""The key that tells a document of mergekit-evolve (`isomerge.merging.recipe.genome`)."""


def read_recipe(path: str | Path | Step) -> Recipe:
    """Read and check a recipe, or a step of one.

    Raises:
        IsomergeError: the file cannot be read (see `isomerge.checkpoint.yaml_text`), or has an unknown or
            misspelt key (with a suggestion).
    """
    content = dict(path.content) if isinstance(path, Step) else read_yaml(path)
    if not isinstance(content, dict):
        raise IsomergeError(f"{path}: a recipe is a mapping with `models` and `merge_method`")
    if is_of_experts(content):
        raise IsomergeError(
            f"{path}: experts of dense models are made by a recipe of their own, not by a step of several: put it "
            f"into a file of its own"
        )
    if GENOME in content:
        raise IsomergeError(
            f"{path}: a genome of mergekit-evolve, whose parameters are searched for: isomerge tune {path} -o OUT, "
            f"or give a recipe with `models` or `slices`"
        )
    content = of_one_module(str(path), content)
    try:
        recipe = Recipe.model_validate(content)
    except ValidationError as error:
        raise IsomergeError(f"{path}: {explained(error, Recipe)}") from None
    _check_shape(path, recipe)
    return recipe


def is_of_experts(content: Any) -> bool:
    """Whether a document makes experts of dense models: a merge by the method `moe`, or one of mergekit-moe's."""
    if not isinstance(content, dict):
        return False
    return content.get("merge_method") == "moe" or ("merge_method" not in content and "experts" in content)


def makes_experts(source: Any) -> TypeGuard[str | Path]:
    """Whether what is merged is a file with a document that makes experts of dense models.

    Raises:
        IsomergeError: it is a file that cannot be read.
    """
    if not isinstance(source, (str, Path)) or not os.path.isfile(file := os.path.expanduser(source)):
        return False
    documents = read_documents(file)
    return len(documents) == 1 and is_of_experts(documents[0])


def read_experts_recipe(path: str | Path) -> ExpertsRecipe:
    """Read and check a document that makes experts of dense models.

    Raises:
        IsomergeError: the file cannot be read, or has an unknown or misspelt key (with a suggestion).
    """
    try:
        return ExpertsRecipe.model_validate(read_yaml(path))
    except ValidationError as error:
        raise IsomergeError(f"{path}: {explained(error, ExpertsRecipe)}") from None


def _check_shape(path: str | Path | Step, recipe: Recipe) -> None:
    """Refuse recipes whose parts contradict each other."""
    if (recipe.models is None) == (recipe.slices is None):
        raise IsomergeError(f"{path}: a recipe has either `models` or `slices`: give one of them")
    if recipe.tokenizer is not None and recipe.tokenizer_source is not None:
        raise IsomergeError(f"{path}: `tokenizer` and `tokenizer_source` say the same: give one of them")
    if not recipe.model_names():
        raise IsomergeError(
            f"{path}: no model is named: list them under `{'models' if recipe.slices is None else 'slices'}`"
        )
    for k, part in enumerate(recipe.slices or ()):
        lengths = {source.layer_range[1] - source.layer_range[0] for source in part.sources}
        if len(lengths) != 1 or min(lengths) < 1:
            raise IsomergeError(
                f"{path}: `slices.{k}`: every source needs a `layer_range` [first, last) of the same number of "
                f"layers, at least one"
            )


def check_checksums(recipe: Recipe | ExpertsRecipe, count: int, path: str | Path) -> None:
    """Refuse checksums of other models than there are."""
    if recipe.checksums and len(recipe.checksums) != count:
        raise IsomergeError(
            f"{path}: `checksums` has {len(recipe.checksums)} entries for {count} models: give one for each, the "
            f"base first, or leave `checksums` out"
        )


def explained(error: ValidationError, schema: type[BaseModel]) -> str:
    """The most telling of pydantic's errors about a text of this schema, as the end of a sentence."""
    errors = error.errors()
    unknown = next((e for e in errors if e["type"] == "extra_forbidden"), None)
    # a misspelt key explains the missing one beside it
    return _mistyped(errors[0], schema) if unknown is None else _misspelt(unknown["loc"], schema)


def _misspelt(place: tuple[Any, ...], schema: type[BaseModel]) -> str:
    known, key = _keys_at(place[:-1], schema), str(place[-1])
    if key in ELSEWHERE:
        return f"unknown key `{_shown(place)}`: {ELSEWHERE[key]}"
    if "parameters" in known and is_parameter(key):
        return f"unknown key `{_shown(place)}`: it is a parameter, so write it under `parameters` there"
    near = get_close_matches(key, known, 1) or [name for name in known if name.startswith(f"{key}_")]
    hint = f"did you mean `{near[0]}`?" if near else f"known are {', '.join(known)}"
    return f"unknown key `{_shown(place)}`: {hint}"


def _mistyped(error: Any, schema: type[BaseModel]) -> str:
    place, keys = _shown(error["loc"]), ", ".join(f"`{key}`" for key in _keys_at(error["loc"], schema))
    said = error["msg"].removeprefix("Value error, ").replace("tuple", "list").replace("Tuple", "List")
    words, _, kind = said.partition(" or instance of ")
    words, given = f"{words[0].lower()}{words[1:]}", error.get("input")
    near = get_close_matches(str(given), re.findall("'([^']*)'", words), 1)
    if error["type"] == "missing":
        words = f"it is missing: write `{error['loc'][-1]}: {EXAMPLES.get(error['loc'][-1], '...')}` there"
    elif kind and isinstance(given, str) and keys.startswith("`model`"):
        words = f"write `model: {given}`; {words}"
    elif error["type"] in ("list_type", "tuple_type"):
        words = f"{words}, such as {EXAMPLES.get(error['loc'][-1], '[..., ...]')}"
    elif error["type"] == "literal_error" and near:
        words = f"did you mean {near[0]}? {words}"
    return f"`{place}`: {words}{kind and f' with the keys {keys}'}{with_points(given)}"


def _shown(place: tuple[Any, ...]) -> str:
    return ".".join(map(str, place))


def _keys_at(place: tuple[Any, ...], schema: type[BaseModel]) -> list[str]:
    """The keys that are allowed at a place."""
    kind: Any = schema
    for part in place:
        if isinstance(part, str) and hasattr(kind, "model_fields") and part in kind.model_fields:
            kind = _entry(kind.model_fields[part].annotation)
    return keys_of(kind) if hasattr(kind, "model_fields") else []


def _entry(annotation: Any) -> Any:
    """The model inside ``list[...] | None`` or ``dict[str, ...]``."""
    while not hasattr(annotation, "model_fields") and (
        inside := [a for a in get_args(annotation) if a is not type(None)]
    ):
        annotation = inside[-1]
    return annotation
