"""What `same_bytes` runs: bound specs, and commands on toys of all families. Names of cases do not change: they are
the keys of the file of digests."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

TOYS = [
    "gpt2", "gpt2-untied", "bert", "deberta-shared", "albert-groups", "electra", "xlnet", "modernbert",
    "roformer", "esm-rotary", "llama", "llama-mqa", "llama-biased", "qwen3", "gemma2", "cohere",
    "olmo2", "gpt_neox", "gptj", "bloom", "opt", "phi", "nemotron", "persimmon", "falcon-slopes",
    "mixtral", "qwen2_moe", "gpt_oss", "deepseek_v3", "t5-gated", "bart", "whisper", "wav2vec2", "vit",
    "dinov2-swiglu", "swin", "segformer", "timm_vit", "clip", "llava", "detr", "mamba2",
    "falcon_mamba", "jamba", "qwen3_next", "unet", "sd3", "flux",
]  # fmt: skip
"""Norms before and behind layers, with and without constants; joint, grouped, shared and latent heads; experts; two
stacks; windows and pyramids; state spaces; two towers; diffusion."""


@dataclass(frozen=True)
class Case:
    """One command, or specs. ``needs``: cases of the group that run first; what they wrote is there."""

    name: str
    command: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    specs: Callable[[], dict[str, dict[str, bytes]]] | None = None


@dataclass
class Group:
    """Cases in one folder, with the models that they read."""

    name: str
    prepare: Callable[[Path], None]
    cases: dict[str, Case] = field(default_factory=dict)

    @property
    def folder(self) -> str:
        """The name of its folder."""
        return self.name.replace(" ", "-")

    def add(self, name: str, command: str = "", *needs: str) -> None:
        """A command of a name; ``OUT`` in it is the case's own place, and ``OUT:x`` that of the needed case x."""
        whole, place = f"{self.name}: {name}", _place(name)
        for needed in sorted(needs, key=len, reverse=True):  # a name may begin with another
            command = command.replace(f"OUT:{needed}", _place(needed))
        words = tuple(command.replace("OUT", place).split())
        self.cases[whole] = Case(whole, words, tuple(f"{self.name}: {needed}" for needed in needs))


def _place(name: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in name)


@cache
def groups() -> dict[str, Group]:
    """All groups by their names."""
    every = [
        _default_specs(),
        _toy_specs(),
        _help(),
        *map(_toy, TOYS),
        *map(_methods, ("llama", "bert")),
        _statistics(),
        _recipes(),
        _surgery(),
        _adapters(),
        _experts(),
        _vocabularies(),
        *map(_pipeline, ("sd", "sdxl", "sd3", "flux")),
        _single_files(),
    ]
    return {group.name: group for group in every}


def _nothing(folder: Path) -> None:
    pass


# ----------------------------------------------------------------------------------------------------------- specs


def plain(thing: Any) -> Any:
    """A record as lists and texts; where a line stands in its file is left out."""
    if is_dataclass(thing):
        kept = [row for row in fields(thing) if row.name != "place"]
        return [type(thing).__name__, *([row.name, plain(getattr(thing, row.name))] for row in kept)]
    if isinstance(thing, Mapping):
        return [[str(key), plain(row)] for key, row in thing.items()]
    if isinstance(thing, set | frozenset):
        return sorted(map(repr, thing))
    if isinstance(thing, list | tuple):
        return [plain(row) for row in thing]
    return thing if isinstance(thing, str | int | float | bool | None) else repr(thing)


MAIN_PARTS = ("sizes", "spaces", "lines", "shifts")
"""Fields of specs that are told apart; the others are one."""


def spec_parts(config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]] | None = None) -> dict[str, bytes]:
    """The parts of the spec that a config is bound to, its blocks where the shapes are stored ones; or why there is
    none."""
    from isomerge.archs import spec_for
    from isomerge.errors import IsomergeError
    from isomerge.symmetry.blocks import gather_blocks
    from isomerge.symmetry.language.spec import coverage

    try:
        spec = spec_for(config, shapes=shapes)
    except IsomergeError as error:
        return {"refused": str(error).encode()}
    rows = {row.name: plain(getattr(spec, row.name)) for row in fields(spec)}
    parts = {name: rows.pop(name) for name in MAIN_PARTS} | {"statements": list(rows.items())}
    if shapes:
        try:
            parts["blocks"] = plain(gather_blocks(spec, coverage(spec, shapes)))
        except IsomergeError:  # some classes store tensors otherwise than modules have them
            parts["blocks"] = None
    return {name: json.dumps(row).encode() for name, row in parts.items()}


def _default_specs() -> Group:
    from isomerge.archs import spec_texts

    group = Group("default specs", _nothing)
    by_letter: dict[str, list[str]] = {}
    for kind in sorted(spec_texts()):
        by_letter.setdefault(kind[0].lower(), []).append(kind)
    for letter, kinds in sorted(by_letter.items()):
        name = f"{group.name}: {letter}"
        group.cases[name] = Case(name, specs=partial(_specs_of_kinds, kinds))
    return group


def _specs_of_kinds(kinds: Iterable[str]) -> dict[str, dict[str, bytes]]:
    import transformers

    known = transformers.CONFIG_MAPPING
    configs = {kind: known[kind]().to_dict() if kind in known else {"model_type": kind} for kind in kinds}
    return {kind: spec_parts(config) for kind, config in configs.items()}


def _toy_specs() -> Group:
    import families

    group = Group("toy specs", _nothing)
    for file in families.FILES:
        toys = {**getattr(file, "TOYS", {}), **getattr(file, "MORE_TOYS", {})}
        name = f"{group.name}: {file.__name__.rpartition('.')[2]}"
        if toys:
            group.cases[name] = Case(name, specs=partial(_specs_of_toys, list(toys)))
    return group


def _specs_of_toys(names: Iterable[str]) -> dict[str, dict[str, bytes]]:
    import families

    found = {}
    for name in names:
        model = families.TOYS[name][0]()
        tensors = model.state_dict() if hasattr(model, "state_dict") else dict(model.named_parameters())
        config = model.config.to_dict() if hasattr(model.config, "to_dict") else dict(model.config)
        found[name] = spec_parts(config, {key: tuple(tensor.shape) for key, tensor in tensors.items()})
    return found


# ----------------------------------------------------------------------------------------------- toys and commands


def _models(toy: str, folder: Path) -> None:
    """Two unrelated models, and two fine-tunes of the first."""
    from solve.disguises import single

    single(toy, folder / "a")
    single(toy, folder / "b", 5)
    _tuned(folder / "a", folder / "near", 0.05, seed=1)
    _tuned(folder / "a", folder / "far", 0.1, seed=2)


def _tuned(base: Path, out: Path, relative: float, seed: int) -> None:
    """The model with noise of that relative size on every tensor of numbers that are no integers."""
    import shutil

    import torch
    from safetensors.torch import load_file, save_file

    out.mkdir()
    shutil.copy(base / "config.json", out)
    rng = torch.Generator().manual_seed(seed)
    for file in sorted(base.glob("*.safetensors")):
        tensors = load_file(file)
        for name, tensor in tensors.items():
            if tensor.is_floating_point():
                noise = torch.randn(tensor.shape, generator=rng, dtype=torch.float64)
                noise *= tensor.double().norm() / noise.norm() * relative
                tensors[name] = (tensor.double() + noise).to(tensor.dtype)
        save_file(tensors, out / file.name, metadata={"format": "pt"})


def _toy(toy: str) -> Group:
    """A toy through the commands that move, merge and compare."""
    group = Group(toy, partial(_models, toy))
    group.add("models")
    group.add("align default", "align b --onto a -o OUT --align --spaces default --json OUT.json")
    moved = "align b --onto a -o OUT --align --spaces all --save-alignment OUT.safetensors --json OUT.json -v"
    group.add("align all", moved)
    group.add("apply", "apply OUT:align all.safetensors b -o OUT", "align all")
    group.add("merge", "merge a b -o OUT --align --spaces paper --no-report")
    group.add(
        "ties", "merge near far -o OUT --method ties --base-model a -p density=0.6 --no-report --json OUT.json"
    )
    group.add("canon", "canon b -o OUT --json OUT.json")
    group.add("verify", "verify b OUT:apply --json OUT.json", "apply")
    group.add("fingerprint", "fingerprint b near OUT:apply -o OUT.fingerprint.json --json OUT.json", "apply")
    return group


def _help() -> Group:
    from isomerge.doors import COMMANDS

    group = Group("help", _nothing)
    group.add("overview", "--help")
    for name in COMMANDS:
        group.add(name, f"{name} --help")
    group.add("list of methods", "methods")
    group.add("list of architectures", "architectures")
    return group


OPTIONS = {
    "slerp": "-p t=0.4", "nearswap": "-p t=0.01", "doge": "-p iterations=20", "wudi": "-p iterations=20",
    "lines": "-p alpha=0.3 -p beta=0.4", "breadcrumbs": "-p density=0.7 -p gamma=0.1", "ties": "-p density=0.5",
    "dare_linear": "-p density=0.5", "dare_ties": "-p density=0.5", "della": "-p density=0.5",
    "della_linear": "-p density=0.5", "knots": "-p density=0.5", "linear": "--weights 0.7,0.3",
    "task_arithmetic": "--weights 0.7,0.3 -p lambda=0.8",
}  # fmt: skip
WITH_DATA = {"fisher", "fisher_kfac", "regmean", "regression", "greedy_soup"}
WITH_THE_BASE_AND_ONE = {"slerp", "nearswap", "arcee_fusion"}


def _methods(toy: str) -> Group:
    """Every method on fine-tunes; some on models that are matched first, written in shards and other dtypes."""
    from isomerge.fusion.registry import methods

    group = Group(f"methods {toy}", partial(_with_data, toy))
    for name, method in methods().items():
        models = "near" if name in WITH_THE_BASE_AND_ONE else "near far"
        models = "near" if name == "passthrough" else models
        base = "--base-model a" if method.base == "required" else ""
        data = "--data data.safetensors --limit 8" if name in WITH_DATA else ""
        group.add(
            name,
            f"merge {models} -o OUT --method {name} {base} {OPTIONS.get(name, '')} {data} --no-report --seed 3",
        )
    both = "merge a b -o OUT --align --no-report"
    group.add("bfloat16 in shards", f"{both} --spaces default --dtype bfloat16 --out-shard-size 30K")
    group.add("without an anchor", f"{both} near --spaces all --anchor none")
    group.add("circuits, matched", f"{both} --spaces default --method circuits --json OUT.json -v")
    group.add("ties, matched", f"{both} --method ties --base-model near --spaces attention --layers 0")
    group.add("a report", "merge a b -o OUT --align --spaces ffn --report")
    group.add("as they are", "merge a b -o OUT --no-align --no-report --json OUT.json")
    group.add("two jobs", f"{both} --spaces all --jobs 2")
    group.add("by activations", f"{both} --data data.safetensors --limit 6 --learn-effort none")
    group.add("rebasin", "align b --onto a -o OUT --align --match git-rebasin")
    group.add("fusion by transport", "merge a b -o OUT --align --match ot-wts --no-report")
    group.add("dry run", "merge a b -o OUT --align --dry-run")
    group.add("fsck", "fsck OUT:as they are", "as they are")
    group.add("inspect", "inspect a -v --json OUT.json")
    group.add("difference", "diff a b --json OUT.json")
    group.add("difference of a fine-tune", "diff a near --json OUT.json -v")
    return group


def _with_data(toy: str, folder: Path) -> None:
    import torch
    from safetensors.torch import save_file

    _models(toy, folder)
    rng = torch.Generator().manual_seed(7)
    tokens = torch.randint(3, 60, (12, 9), generator=rng)
    labels = {} if toy in ("llama", "gpt2") else {"labels": torch.randint(3, 60, (12, 9), generator=rng)}
    save_file({"input_ids": tokens, **labels}, folder / "data.safetensors")


def _statistics() -> Group:
    group = Group("statistics", partial(_with_data, "gpt2"))
    for kind in ("activations", "regmean", "fisher", "kfac"):
        group.add(kind, f"stats a --data data.safetensors -o OUT.safetensors --kinds {kind} --json OUT.json")
    group.add("activations of b", "stats b --data data.safetensors -o OUT.safetensors --kinds activations")
    both = "--stats-src OUT:activations of b.safetensors --stats-anchor OUT:activations.safetensors"
    group.add(
        "align by files",
        f"align b --onto a -o OUT --align {both} --json OUT.json",
        "activations of b",
        "activations",
    )
    group.add("repaired", "merge a b -o OUT --align --spaces default --repair data.safetensors --no-report")
    group.add("learned", "align b --onto a -o OUT --align --spaces default --learn data.safetensors --steps 3")
    group.add("eval", "eval a b --data data.safetensors --json OUT.json")
    group.add("barrier", "barrier a b --data data.safetensors --points 3 --spaces default --json OUT.json")
    return group


# ------------------------------------------------------------------------------------------------------- recipes

SLICES = """
slices:
  - sources: [{model: a, layer_range: [0, 2]}, {model: near, layer_range: [0, 2]}]
  - sources: [{model: a, layer_range: [2, 3]}, {model: far, layer_range: [2, 3]}]
merge_method: slerp
base_model: a
parameters:
  t: [{filter: attn, value: [0, 0.5, 1]}, {value: 0.3}]
dtype: float32
"""
STACKED = """
slices:
  - sources: [{model: a, layer_range: [0, 2]}]
  - sources: [{model: near, layer_range: [1, 3]}]
merge_method: passthrough
"""
RECIPES = {
    "linear": "models: [{model: a, parameters: {weight: 3}}, {model: b}]\nmerge_method: linear\ndtype: float16\n"
    "align: {spaces: attention, layers: 0-1}\n",
    "gradients": "models: [{model: near, parameters: {weight: [0, 1], density: 0.5}},"
    " {model: far, parameters: {weight: 0.4}}]\n"
    "merge_method: ties\nbase_model: a\nparameters: {normalize: true, int8_mask: true}\n",
    "slices": SLICES,
    "stacked": STACKED,
    "steps": "name: first\nmerge_method: linear\nmodels: [{model: a}, {model: near}]\n---\n"
    "merge_method: task_arithmetic\nbase_model: a\n"
    "models: [{model: first, parameters: {weight: 0.75}}, {model: far}]\n",
    "without alignment": "models: [{model: a}, {model: b}]\nmerge_method: linear\nalign: {enabled: false}\n",
    "wrong": "models: [{model: a}, {model: b}]\nmerge_method: linaer\n",
}


def _recipes() -> Group:
    group = Group("recipes", _with_recipes)
    for name in RECIPES:
        group.add(name, f"merge {_place(name)}.yml -o OUT --no-report --json OUT.json")
    return group


def _with_recipes(folder: Path) -> None:
    _models("gpt2", folder)
    for name, text in RECIPES.items():
        (folder / f"{_place(name)}.yml").write_text(text)


def _surgery() -> Group:
    """What is made of merged models for one task, and other forms of models."""
    group = Group("tasks and forms", partial(_models, "gpt2"))
    group.add("merged", "merge near far -o OUT --method emr --base-model a --no-align --no-report")
    for kind in ("emr", "tall"):
        group.add(
            f"mask {kind}",
            f"task-mask OUT:merged a near -o OUT.safetensors --kind {kind} --json OUT.json",
            "merged",
        )
        restored = f"restore-task OUT:merged a OUT:mask {kind}.safetensors -o OUT"
        group.add(f"restored by {kind}", restored, "merged", f"mask {kind}")
    group.add("untied", "canon a -o OUT --untie --json OUT.json")
    group.add("untied, aligned", "align b --onto a -o OUT --align --spaces all --untie")
    group.add("unlike", "verify a b --json OUT.json")
    group.add("alike", "verify a a --run --json OUT.json")
    group.add("near", "verify a near -v")
    return group


# ------------------------------------------------------------------------------------------------------ adapters


def _adapters() -> Group:
    group = Group("adapters", _with_adapters)
    for rank in ("2", "8 --save-modules"):
        group.add(f"extract {rank[0]}", f"extract-lora near a -o OUT --rank {rank} --json OUT.json")
    group.add("extract by energy", "extract-lora far a -o OUT --energy 0.6 --include mlp -v")
    two = ("extract 2", "extract by energy")
    places = "OUT:extract 2 OUT:extract by energy"
    for method in ("svd", "cat", "linear", "ties", "dare_linear", "dare_ties", "magnitude_prune"):
        density = "--density 0.5" if method not in ("svd", "cat", "linear") else ""
        words = f"merge-lora one two -o OUT --method {method} {density} --seed 2 --json OUT.json"
        group.add(f"merged by {method}", words)
    group.add(
        "merged by svd, of other modules",
        f"merge-lora {places} -o OUT --method svd --rank 3 --weights 0.7,-0.4",
        *two,
    )
    group.add("put into the base", "merge a+lora near -o OUT --weights 0.6,0.4 --no-align --no-report")
    return group


def _with_adapters(folder: Path) -> None:
    import shutil

    import torch
    from safetensors.torch import load_file, save_file

    from merging.peft_reference import HERE

    _models("llama", folder)
    for name in ("one", "two"):
        shutil.copytree(HERE / name, folder / name)
    rng, factors = torch.Generator().manual_seed(3), {}
    for name, tensor in load_file(folder / "a/model.safetensors").items():
        if name.endswith("q_proj.weight"):
            module = f"base_model.model.{name.removesuffix('.weight')}"
            factors[f"{module}.lora_A.weight"] = torch.randn(2, tensor.shape[1], generator=rng)
            factors[f"{module}.lora_B.weight"] = torch.randn(tensor.shape[0], 2, generator=rng) / 10
    (folder / "lora").mkdir()
    save_file(factors, folder / "lora/adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "r": 2,
        "lora_alpha": 4,
        "target_modules": ["q_proj"],
        "base_model_name_or_path": "a",
    }
    (folder / "lora/adapter_config.json").write_text(json.dumps(config))


# ---------------------------------------------------------------------------------- experts, widths, vocabularies

EXPERTS = {
    "mixtral": {"architecture": "mixtral"},
    "shared": {
        "architecture": "granitemoeshared",
        "shared_experts": [{"source_model": "a", "residual_scale": 0.5}],
    },
    "one of two": {"experts_per_token": 1},
}


def _experts() -> Group:
    group = Group("experts and widths", _with_experts)
    for name in EXPERTS:
        group.add(name, f"merge {_place(name)}.yml -o OUT --seed 3 --json OUT.json")
    group.add("wider", "widen a -o OUT --set hidden_size=40 --set num_hidden_layers=3 --json OUT.json")
    group.add("wider neurons", "widen a -o OUT --set intermediate_size=64 -v")
    group.add(
        "wider, aligned", "align OUT:wider b --onto OUT:wider -o OUT --align --spaces default", "wider", "wider b"
    )
    group.add("wider b", "widen b -o OUT --like OUT:wider", "wider")
    group.add("refused", "widen a -o OUT --set hidden_size=-3")
    return group


def _with_experts(folder: Path) -> None:
    import yaml

    from cli.test_experts import dense

    for name, seed in (("a", 0), ("b", 1)):
        dense(folder / name, seed=seed, words=False)
    for name, more in EXPERTS.items():
        experts = [{"source_model": "a"}, {"source_model": "b"}]
        if "shared_experts" in more:
            experts = [{**row, "residual_scale": 0.5} for row in experts]
        document = {"base_model": "a", "gate_mode": "random", "experts": experts, **more}
        (folder / f"{_place(name)}.yml").write_text(yaml.safe_dump(document))


def _vocabularies() -> Group:
    group = Group("vocabularies", _with_vocabularies)
    for missing in ("omp", "nearest", "subword", "mean", "zero"):
        words = (
            f"transplant-tokenizer one --tokenizer two -o OUT --missing {missing} --neighbours 4 --json OUT.json"
        )
        group.add(missing, words)
    for source in ("union", "base"):
        words = f"merge one two -o OUT --tokenizer-source {source} --no-align --no-report --json OUT.json"
        group.add(source, words)
    group.add(
        "union, matched", "merge one two -o OUT --tokenizer-source union --align --spaces default --no-report"
    )
    group.add("padded", "transplant-tokenizer one --tokenizer two -o OUT --pad-to-multiple-of 8")
    return group


def _with_vocabularies(folder: Path) -> None:
    from models.test_token_vectors import WORDS, llama, words

    llama(folder / "one", words(WORDS))
    llama(folder / "two", words([*WORDS[2:], "x", *WORDS[:2]]), seed=1)


# --------------------------------------------------------------------------------------------------- diffusion


def _pipeline(kind: str) -> Group:
    group = Group(f"pipeline {kind}", partial(_pipelines, kind))
    group.add("mean", "merge a b -o OUT --no-align --no-report")
    group.add("matched", "merge a b -o OUT --align --spaces default --no-report --json OUT.json")
    group.add("recipe", "merge recipe.yml -o OUT --no-report")
    return group


def _pipelines(kind: str, folder: Path) -> None:
    from pipeline_models import PIPELINES, save

    for name, seed in (("a", 0), ("b", 10)):
        save(PIPELINES[kind](seed), folder / name)
    text = (
        "merge_method: slerp\nbase_model: a\nmodels: [{model: a}, {model: b}]\nparameters: {t: 0.3}\nvae: keep:b\n"
    )
    (folder / "recipe.yml").write_text(text + "text_encoder: {parameters: {t: 0.75}}\n")


def _single_files() -> Group:
    group = Group("single files", _with_single_files)
    for kind in ("sd1", "xl"):
        group.add(f"{kind} mean", f"merge {kind}-a.safetensors {kind}-b.safetensors -o OUT --no-align --no-report")
        group.add(f"{kind} matched", f"merge {kind}-a.safetensors {kind}-b.safetensors -o OUT --align --no-report")
        tuned = f"{kind}-a.safetensors {kind}-c.safetensors -o OUT --method ties --base-model {kind}-a.safetensors"
        group.add(f"{kind} ties", f"merge {tuned} --no-report -p density=0.5")
    group.add("flux mean", "merge flux-a.safetensors flux-b.safetensors -o OUT --no-align --no-report")
    return group


def _with_single_files(folder: Path) -> None:
    from safetensors.torch import save_file

    from single_file_layouts import flux
    from single_file_models import single_file

    for kind in ("sd1", "xl"):
        single_file(kind, folder / f"{kind}-a.safetensors", 0)
        single_file(kind, folder / f"{kind}-b.safetensors", 5)
        single_file(kind, folder / f"{kind}-c.safetensors", 0, 0.01)
    for name, seed in (("a", 0), ("b", 1)):
        save_file(flux(seed), folder / f"flux-{name}.safetensors")
