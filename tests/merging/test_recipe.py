"""Recipes: mergekit's YAML, checked to the last key."""

from __future__ import annotations

from pathlib import Path

import pytest

from isomerge.checkpoint.yaml_text import read_yaml
from isomerge.errors import IsomergeError
from isomerge.merging.recipe.schema import Recipe, read_recipe
from isomerge.options import MatchingOptions

FULL = """
models:
  - model: org/base@v1
    parameters: {weight: 0.7}
  - model: ./tuned
merge_method: linear
dtype: bfloat16
parameters:
  normalize: false
align:
  enabled: true
  spaces: qk,ov
  layers: tail:3
"""


def write(folder: Path, text: str) -> Path:
    """A recipe file."""
    (folder / "recipe.yml").write_text(text, encoding="utf-8")
    return folder / "recipe.yml"


def test_every_key(tmp_path: Path) -> None:
    """A recipe that uses all there is."""
    recipe = read_recipe(write(tmp_path, FULL))
    assert [(m.model, m.parameters) for m in recipe.models or ()] == [
        ("org/base@v1", {"weight": 0.7}),
        ("./tuned", {}),
    ]
    assert (recipe.merge_method, recipe.dtype, recipe.parameters) == ("linear", "bfloat16", {"normalize": False})
    assert (recipe.align.enabled, recipe.align.spaces, recipe.align.layers) == (True, "qk,ov", "tail:3")


def test_what_changes_nothing(tmp_path: Path) -> None:
    """A step's name, as recipes of mergekit-multi have it, and torch's name of a dtype."""
    recipe = read_recipe(
        write(tmp_path, "name: first\ndtype: torch.bfloat16\n" + FULL.replace("dtype: bfloat16\n", ""))
    )
    assert (recipe.name, recipe.dtype) == ("first", "bfloat16")
    assert recipe.models == read_recipe(write(tmp_path, FULL)).models


def test_one_module_is_the_recipe(tmp_path: Path) -> None:
    """mergekit's way to write a recipe by modules, where there is one: the same, whatever stands beside it."""
    plain = "models: [{model: a}, {model: b}]\nmerge_method: ties\nbase_model: a\ndtype: bfloat16\n"
    inside = "".join(f"    {line}\n" for line in plain.splitlines()[:3])
    by_module = read_recipe(
        write(tmp_path, f"dtype: bfloat16\nmerge_method: linear\nmodules:\n  default:\n{inside}")
    )
    assert by_module == read_recipe(write(tmp_path, plain))
    assert (by_module.merge_method, by_module.base_model) == ("ties", "a")


def test_modules_that_say_the_same_are_one(tmp_path: Path) -> None:
    """As multimodal recipes of mergekit have them: text, image and projector by the same models."""
    module = "{models: [{model: a}, {model: b}], parameters: {weight: 2}}"
    text = f"modules: {{text_decoder: {module}, vision_tower: {module[:-1]}, slices: }}}}\nmerge_method: linear\n"
    plain = "models: [{model: a}, {model: b}]\nparameters: {weight: 2}\nmerge_method: linear\n"
    assert read_recipe(write(tmp_path, text)) == read_recipe(write(tmp_path, plain))


def test_modules_that_differ_in_parameters_have_filters(tmp_path: Path) -> None:
    """Encoder and decoder by their names, and what is in neither; what one does not say is the recipe's."""
    text = (
        "merge_method: ties\nbase_model: c\nparameters: {weight: 3}\nmodules:\n"
        "  shared: {models: [{model: a, parameters: {density: 0.7}}, {model: b}], parameters: {lambda: 1}}\n"
        "  decoder: {models: [{model: a, parameters: {density: [0.1, 0.2]}}, {model: b}], parameters: {lambda: 1}}\n"
        "  encoder: {models: [{model: a, parameters: {density: 0.5, weight: 2}}, {model: b}], "
        "parameters: {lambda: 1}}\n"
    )
    recipe = read_recipe(write(tmp_path, text))
    assert recipe.parameters == {"weight": 3, "lambda": 1}
    assert recipe.models is not None
    assert [entry.parameters for entry in recipe.models] == [
        {
            "density": [
                {"filter": "encoder.", "value": 0.5}, {"filter": "decoder.", "value": [0.1, 0.2]}, {"value": 0.7},
            ],
            "weight": [{"filter": "encoder.", "value": 2}],
        },
        {},
    ]  # fmt: skip


def test_parameters_of_a_module_and_beside_it(tmp_path: Path) -> None:
    """The module's come first; what it does not say is the recipe's."""
    inside = "modules: {default: {models: [{model: a}], parameters: {weight: 2}}}\n"
    recipe = read_recipe(write(tmp_path, f"{inside}merge_method: ties\nparameters: {{weight: 1, density: 0.5}}\n"))
    assert recipe.parameters == {"weight": 2, "density": 0.5}


def test_filters_of_a_module_leave_other_tensors_to_the_recipe(tmp_path: Path) -> None:
    """As in mergekit: where none of the module's filters fits, what stands beside it counts."""
    common = "{t: [0.2, 0.8], weight: [{filter: attn, value: 4}, {value: 5}], density: 0.5}"
    inside = "{t: {filter: mlp, value: 1}, weight: [{filter: mlp, value: [2, 3]}], density: [0.1, 0.2]}"
    text = (
        f"modules: {{x: {{models: [{{model: a}}], parameters: {inside}}}}}\nmerge_method: x\nparameters: {common}\n"
    )
    assert read_recipe(write(tmp_path, text)).parameters == {
        "t": [{"filter": "mlp", "value": 1}, {"value": [0.2, 0.8]}],
        "weight": [{"filter": "mlp", "value": [2, 3]}, {"filter": "attn", "value": 4}, {"value": 5}],
        "density": [0.1, 0.2],
    }


EMPTY = """
{parts}
merge_method: linear
base_model:
parameters:
dtype:
out_dtype:
tokenizer: {{source: union, tokens:, pad_to_multiple_of:}}
tokenizer_source:
chat_template:
align: {{enabled: true, data:, stats:, steps:, spaces:}}
"""
SLICE = "slices: [{sources: [{model: a, layer_range: [0, 1], parameters:}], base_model:, parameters:, residual_weight:}]"


@pytest.mark.parametrize(
    ("parts", "plain"),
    [
        ("models: [{model: a, parameters:, base_model:, stats:}]\nslices:", "models: [{model: a}]"),
        (f"{SLICE}\nmodels:", "slices: [{sources: [{model: a, layer_range: [0, 1]}]}]"),
        ("modules: {x: {models: [{model: a}], parameters:, slices:}}", "models: [{model: a}]"),
    ],
)
def test_empty_keys_say_nothing(parts: str, plain: str, tmp_path: Path) -> None:
    """As in mergekit, at every level."""
    found = read_recipe(write(tmp_path, EMPTY.format(parts=parts)))
    text = f"{plain}\nmerge_method: linear\ntokenizer: {{source: union}}\nalign: true\n"
    assert found == read_recipe(write(tmp_path, text))


def test_defaults(tmp_path: Path) -> None:
    """A recipe of the two keys that must be there: mergekit's, so nothing is aligned."""
    recipe = read_recipe(write(tmp_path, "models: [{model: a}, {model: b}]\nmerge_method: linear\n"))
    assert [m.parameters for m in recipe.models or ()] == [{}, {}]
    assert recipe.dtype is None
    assert recipe.align == Recipe.model_fields["align"].default
    assert (recipe.align.enabled, recipe.align.spaces, recipe.align.layers) == (False, None, None)
    aligned = read_recipe(write(tmp_path, "models: [{model: a}, {model: b}]\nmerge_method: linear\nalign: true\n"))
    assert (aligned.align.enabled, aligned.align.spaces) == (True, None)
    assert recipe.align.matching() == {}


EVIDENCE = """
align:
  data: images
  stats: [a.safetensors, b.safetensors]
  evidence: activations
  search: 20
  learn: texts
  learn_effort: thorough
  learn_target: distill
  steps: 12
  learn_permutations: true
  functional: false
  input_metric: true
  batch_size: 4
  device: cuda
  precision: bfloat16
  gradient_checkpointing: true
  limit: 100
  length: 64
  rows: 512
  seed: 3
  match: otfusion
  transport: [heads=within]
"""


def test_every_option_of_the_match(tmp_path: Path) -> None:
    """The block has each option that `isomerge.align` takes beside the weights, by its name there."""
    block = read_recipe(write(tmp_path, f"{MODELS}merge_method: linear\n{EVIDENCE}")).align
    found = block.matching()
    wanted = set(MatchingOptions.declared())
    assert set(found) == wanted
    assert found["stats_anchor"] == "a.safetensors"
    assert found["stats_src"] == ["b.safetensors"]
    assert (found["search"], found["steps"], found["learn_permutations"], found["seed"]) == (20.0, 12, True, 3)
    assert set(type(block).model_fields) == {*wanted - {"stats_src", "stats_anchor"}, "stats", *OWN}


OWN = ("enabled", "anchor", "onto", "repair", "heads", "merge_base", "spaces", "layers", "untie", "spec")
MODELS = "models: [{model: a}, {model: b}]\n"
WRONG = [
    (MODELS + "merge_method: linear\nalign: {enbled: true}", "unknown key `align.enbled`: did you mean `enabled`?"),
    (MODELS + "merge_method: linear\nalign: {lern: x}", "unknown key `align.lern`: did you mean `learn`?"),
    (MODELS + "merge_method: linear\nalign: {steps: many}", "`align.steps`: input should be a valid integer"),
    (MODELS + "merge_method: linear\nalign: {stats: x}", "`align.stats`: input should be a valid list"),
    (MODELS + "merge_method: linear\nbase: a", "unknown key `base`: did you mean `base_model`?"),
    (MODELS + "merge_method: linear\ndtype: bf16", "`dtype`: bf16 is no dtype here: did you mean bfloat16?"),
    (MODELS + "merge_method: linear\ndtypes: float32", "unknown key `dtypes`: did you mean `dtype`?"),
    (MODELS + "merge_method: linear\nzzz: 1", "unknown key `zzz`: known are models, slices, merge_method"),
    (MODELS + "merge_method: linear\nimport: 3", "`import`: input should be a valid list"),
    (MODELS + "merge_method: linear\nimport: [3]", "`import.0`: input should be a valid string"),
    (MODELS + "merge_method: linear\nimports: x", "unknown key `imports`: did you mean `import`?"),
    (MODELS + "merge_method: linear\nalign: {layers: 3}", "`align.layers`: input should be a valid string"),
    (MODELS + "merge_method: linear\nmerge_method: ties", "line 3 has the key `merge_method` once more: give it once"),
    ("a: &x {merge_method: ties}\n" + MODELS + "<<: *x\nmerge_method: linear", "unknown key `a`"),
    (MODELS + "merge_method: linear\n---\n" + MODELS, "holds 2 documents (---), and one is expected"),
    ("base_model: a\ngate_mode: hidden\nexperts: []", "experts of dense models are made by a recipe of their own"),
    ("models: [a, b]\nmerge_method: linear", "`models.0`: write `model: a`; input should be a valid dictionary with the keys `model`, "),
    (MODELS + "merge_method: ties\nbase_model: {name: c}", "`base_model`: a model is a name such as org/name"),
    ("slices: [{sources: [{model: a, layer_range: [0, 1, 2]}]}]\nmerge_method: linear", "`slices.0.sources.0.layer_range`: list "),
    (MODELS + "merge_method: linear\ndtype: int8", "`dtype`: input should be 'float32'"),
    (MODELS, "`merge_method`: it is missing: write"),
    (MODELS + "merge_method:", "`merge_method`: it is missing: write"),
    (MODELS + "merge_method: linear\nparameter:", "unknown key `parameter`: did you mean `parameters`?"),
    (MODELS + "merge_method: linear\nalign:", "`align`: input should be a valid dictionary"),
    ("slices: [{sources: [{model: a, layer_range: [0, 1]}], residual_weight: much}]\nmerge_method: linear", "`slices.0.residual_weight`"),
    ("merge_method: linear", "either `models` or `slices`"),
    (MODELS + "slices: []\nmerge_method: linear", "either `models` or `slices`"),
    ("models: []\nmerge_method: linear", "no model is named"),
    ("models: [{model: a, parmeters: {weight: 2}}]\nmerge_method: linear", "`models.0.parmeters`: did you mean `parameters`?"),
    ("models: [{model: {path: a}}]\nmerge_method: linear", "a model is a name such as"),
    (MODELS + "merge_method: linear\ntokenizer: {sorce: union}", "`tokenizer.sorce`: did you mean `source`?"),
    (MODELS + "merge_method: linear\ntokenizer: {source: union}\ntokenizer_source: base", "give one of them"),
    ("slices: [{sources: [{model: a}]}]\nmerge_method: linear", "`slices.0.sources.0.layer_range`: it is missing: write"),
    ("slices: [{sources: [{model: a, layer_range: [2, 2]}]}]\nmerge_method: linear", "`slices.0`: every source needs a `layer_range`"),
    ("slices: [{sources: [{model: a, layer_range: [0, 2]}, {model: b, layer_range: [0, 1]}]}]\nmerge_method: linear", "the same number of layers"),
    ("modules: {a: 1}\nmerge_method: linear", "`modules` is a mapping from modules to what each has"),
    ("modules: {}\nmerge_method: linear", "`modules` is a mapping from modules to what each has"),
    ("modules: {a: {models: []}, b: {models: [{model: x}]}}\nmerge_method: linear", "`modules.a` and `modules.b` have different `models`"),
    ("modules: {encoder: {models: []}, b: {models: [], parameters: {t: 1}}}\nmerge_method: linear", "`modules.b` is no known part of a model; known are"),
    ("modules: {a: {slices: []}, b: {slices: []}}\nmerge_method: linear", "`modules.b.slices`: layers of one of several modules"),
    ("models: []\nmodules: {a: {models: []}}\nmerge_method: linear", "`models` stands beside `modules`"),
    ("models: [{model: 3}]\nmerge_method: linear", "`models.0.model`: input should be a valid string"),
    ("models: {model: a}\nmerge_method: linear", "`models`: input should be a valid list"),
    ("[1, 2", "not valid YAML"),
    ("!!python/object/apply:os.system ['true']", "not valid YAML"),
    ("just text", "a recipe is a mapping"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "words"), WRONG)
def test_wrong_recipes(text: str, words: str, tmp_path: Path) -> None:
    """One sentence that names the file and the key."""
    path = write(tmp_path, text)
    with pytest.raises(IsomergeError) as error:
        read_recipe(path)
    assert str(error.value).startswith(f"{path}: ")
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_unreadable(tmp_path: Path) -> None:
    """A file that is absent, a folder, and bytes that are no text."""
    (tmp_path / "latin").write_bytes(b"models: \xff\xfe")
    for path in (tmp_path / "none.yml", tmp_path, tmp_path / "latin"):
        with pytest.raises(IsomergeError, match="cannot read this recipe"):
            read_recipe(path)


def test_a_key_that_two_mappings_have_is_no_key_twice(tmp_path: Path) -> None:
    """`<<` puts the keys of another mapping below a mapping's own, in whatever order the two are made."""
    (tmp_path / "x.yml").write_text("a: &a {t: 1}\nb: {c: {d: &d {<<: *a, t: 2}}}\ne: {<<: *d, f: 3}\n")
    assert read_yaml(tmp_path / "x.yml") == {"a": {"t": 1}, "b": {"c": {"d": {"t": 2}}}, "e": {"t": 2, "f": 3}}
