"""Bad input: exit code 2, one line on stderr that says what, where and how to mend it, and nothing written."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from solve.disguises import single
from toy_settings import BODY_OF_THREE
from toys import config_of

ROPE = {"rope_type": "default"}


def listing(folder: Path) -> dict[str, Any]:
    """Everything under a folder: links and folders as they are, files with their bytes."""
    return {
        str(p.relative_to(folder)): os.readlink(p) if p.is_symlink() else p.read_bytes() if p.is_file() else None
        for p in sorted(folder.rglob("*"))
    }


def retensor(folder: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    """Change a single-file checkpoint's tensors."""
    found = {n: t.clone() for n, t in load_file(folder / "model.safetensors").items()}
    change(found)
    save_file(found, folder / "model.safetensors", metadata={"format": "pt"})


def reconfig(folder: Path, **changes: Any) -> None:
    """Change config.json; None removes a key."""
    config = {**config_of(folder), **changes}
    (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))


def shard(folder: Path) -> dict[str, str]:
    """Cut a single-file checkpoint into two shards with an index; returns the weight map."""
    found = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(found)
    weight_map = {}
    for number, part in enumerate((names[::2], names[1::2]), 1):
        file = f"model-{number:05d}-of-00002.safetensors"
        save_file({n: found[n] for n in part}, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    write_index(folder, weight_map)
    return weight_map


def write_index(folder: Path, weight_map: dict[str, str]) -> None:
    """The index of a sharded checkpoint."""
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def nan_at(name: str, value: float) -> Callable[[dict[str, torch.Tensor]], None]:
    """Put one bad number into a tensor."""
    return lambda found: found[name].flatten().__setitem__(-1, value)


def refuses(isomerge: Callable, root: Path, *arguments: object, words: list[str]) -> str:
    """Run, and check the contract; ``words`` must all be in the one line."""
    before = listing(root)
    said = isomerge(*arguments)
    lines = said.err.splitlines()
    assert said.code == 2, said.err
    assert len(lines) == 1, said.err
    assert lines[0].startswith("isomerge: ")
    assert "Traceback" not in said.err
    assert [word for word in words if word not in lines[0]] == [], lines[0]
    assert said.out == ""
    assert listing(root) == before
    return lines[0]


# ----------------------------------------------------------------------------------------- damaged checkpoints

ATTN = "transformer.h.1.attn.c_attn.weight"


def missing_weights(a: Path, b: Path) -> None:
    """No weights at all."""
    (b / "model.safetensors").unlink()


def truncated(a: Path, b: Path) -> None:
    """A file that a download left short."""
    path = b / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def truncated_shard(a: Path, b: Path) -> None:
    """The same in a shard."""
    shard(b)
    path = b / "model-00002-of-00002.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def truncated_header(a: Path, b: Path) -> None:
    """Not even the header is whole."""
    path = b / "model.safetensors"
    path.write_bytes(path.read_bytes()[:40])


def empty_file(a: Path, b: Path) -> None:
    """A file of no bytes."""
    (b / "model.safetensors").write_bytes(b"")


def lost_shard(a: Path, b: Path) -> None:
    """The index names a shard that is absent."""
    shard(b)
    (b / "model-00001-of-00002.safetensors").unlink()


def shard_outside(a: Path, b: Path) -> None:
    """The index leads out of the folder."""
    weight_map = shard(b)
    shutil.copy(b / "model-00001-of-00002.safetensors", b.parent / "x.safetensors")
    write_index(b, {n: "../x.safetensors" if "00001" in f else f for n, f in weight_map.items()})


def shard_absolute(a: Path, b: Path) -> None:
    """The index names an absolute path."""
    write_index(b, dict.fromkeys(shard(b), "/etc/passwd.safetensors"))


def index_without_map(a: Path, b: Path) -> None:
    """An index of another kind."""
    shard(b)
    (b / "model.safetensors.index.json").write_text("{}")


def misplaced(a: Path, b: Path) -> None:
    """The index and a shard disagree."""
    weight_map = shard(b)
    name = min(weight_map)
    write_index(b, {**weight_map, name: "model-00002-of-00002.safetensors"})


def unknown_tensor(a: Path, b: Path) -> None:
    """A tensor that no line of the spec describes."""
    retensor(b, lambda t: t.update({"transformer.h.1.attn.lora_A.weight": torch.zeros(2, 2)}))


def missing_tensor(a: Path, b: Path) -> None:
    """A tensor that the other model has."""
    retensor(b, lambda t: t.pop(ATTN))


def duplicated_tensor(a: Path, b: Path) -> None:
    """One tensor with the prefix and without."""
    retensor(b, lambda t: t.update({ATTN.removeprefix("transformer."): t[ATTN].clone()}))


def wrong_shape(a: Path, b: Path) -> None:
    """A tensor that config.json does not fit."""
    retensor(b, lambda t: t.update({ATTN: t[ATTN][:-1].clone()}))


def wrong_rank(a: Path, b: Path) -> None:
    """A tensor of another number of dimensions."""
    retensor(b, lambda t: t.update({ATTN: t[ATTN].flatten()}))


def config_is_not_json(a: Path, b: Path) -> None:
    """A config.json cut short."""
    (b / "config.json").write_text('{"model_type": "gpt2",')


def config_is_a_list(a: Path, b: Path) -> None:
    """A config.json that is no object."""
    (b / "config.json").write_text("[]")


def no_config(a: Path, b: Path) -> None:
    """A folder of weights alone."""
    (b / "config.json").unlink()


def unknown_architecture(a: Path, b: Path) -> None:
    """An architecture without a spec."""
    reconfig(b, model_type="rwkv")


def more_layers(a: Path, b: Path) -> None:
    """Weights of one layer more."""
    retensor(b, lambda t: t.update({n.replace("h.2.", "h.3."): v.clone() for n, v in t.items() if "h.2." in n}))


def sizeless(a: Path, b: Path) -> None:
    """A config.json without a size that the spec needs."""
    reconfig(b, n_embd=None, hidden_size=None)


def textual(a: Path, b: Path) -> None:
    """A size that is text."""
    reconfig(b, n_embd="48")


DAMAGE = [
    (missing_weights, ["b has no weights", "model.safetensors", "save_pretrained"]),
    (truncated, ["b/model.safetensors", "truncated", "download"]),
    (truncated_shard, ["b/model-00002-of-00002.safetensors", "truncated", "download"]),
    (truncated_header, ["b/model.safetensors", "truncated", "download"]),
    (empty_file, ["b/model.safetensors", "truncated", "download"]),
    (lost_shard, ["b/model-00001-of-00002.safetensors", "missing", "download"]),
    (shard_outside, ["b/model.safetensors.index.json", "../x.safetensors", "same folder"]),
    (shard_absolute, ["b/model.safetensors.index.json", "/etc/passwd", "same folder"]),
    (index_without_map, ["b/model.safetensors.index.json", "weight_map", "download"]),
    (misplaced, ["b/model", "00001", "h.0.attn.c_attn.bias", "download"]),
    (unknown_tensor, ["/b", "transformer.h.1.attn.lora_A.weight", "gpt2", "--spec"]),
    (missing_tensor, ["/b", "h.1.attn.c_attn.weight", "missing", "shard"]),
    (duplicated_tensor, ["/b", ATTN, "two names"]),
    (wrong_shape, ["/b", ATTN, "47", "48", "config.json"]),
    (wrong_rank, ["/b", ATTN, "dimensions", "config.json"]),
    (config_is_not_json, ["b/config.json", "not valid JSON", "save_pretrained"]),
    (config_is_a_list, ["b/config.json", "not an object", "save_pretrained"]),
    (no_config, ["b/config.json", "does not exist", "save_pretrained"]),
    (unknown_architecture, ["/b", "different architectures", "rwkv", "isomerge inspect"]),
    (more_layers, ["there are 3 layers (h.)", "layer 3 is stored", "correct the number"]),
    (sizeless, ["/b", "config.json", "res"]),
    (textual, ["/b", "config.json", "res"]),
]

ALONE = {unknown_architecture: ["/b", "no spec for model_type 'rwkv'", "--spec"]}
"""The words about a model without another, where they differ."""


@pytest.mark.parametrize(("damage", "words"), DAMAGE, ids=[d.__name__ for d, _ in DAMAGE])
def test_damaged_checkpoint(
    damage: Callable, words: list[str], copies: Callable, isomerge: Callable, tmp_path: Path
) -> None:
    """As second and as first model of a merge, and where it is the only one."""
    a, b = copies("gpt2")
    damage(a, b)
    refuses(isomerge, tmp_path, "merge", a, b, "-o", tmp_path / "out", words=words)
    refuses(isomerge, tmp_path, "align", b, "--onto", a, "-o", tmp_path / "out", words=words)
    if damage not in (missing_tensor, more_layers):
        refuses(isomerge, tmp_path, "inspect", b, words=ALONE.get(damage, words))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", ["transformer.wpe.weight", ATTN, "transformer.ln_f.bias"])
def test_numbers_that_are_none(
    value: float, name: str, copies: Callable, isomerge: Callable, tmp_path: Path
) -> None:
    """NaN and infinite weights are found when they are read, whichever model has them; the partial folder goes."""
    a, b = copies("gpt2")
    retensor(b, nan_at(name, value))
    words = ["b/model.safetensors", name, "NaN or infinite", "damaged"]
    refuses(isomerge, tmp_path, "merge", a, b, "-o", tmp_path / "out", words=words)
    refuses(isomerge, tmp_path, "merge", b, a, "-o", tmp_path / "out", "-q", words=words)
    refuses(isomerge, tmp_path, "align", b, "--onto", a, "-o", tmp_path / "out", words=words)
    refuses(isomerge, tmp_path, "diff", a, b, words=words)


# --------------------------------------------------------------------------------------------- models that differ


AVERAGED = "cannot be averaged"


def against(
    tmp_path: Path, isomerge: Callable, a: Path, b: Path, words: list[str], *, retuned: bool = False
) -> None:
    """merge, align and a dry run refuse a pair, and so do diff and verify, but for one whose configs alone differ:
    of it diff says in what, and verify no; what fine-tunes set anew is told where nothing is aligned."""
    out = tmp_path / "out"
    if retuned:
        said = isomerge("merge", a, b, "-o", out, "--no-align", "--dry-run")
        assert said.code == 0
        assert [w for w in [*words, f"what is written has that of {a}"] if w not in said.out + said.err] == [
            AVERAGED
        ]
        words = [*words, "(--no-align)"]
    else:
        refuses(isomerge, tmp_path, "merge", a, b, "-o", out, "--no-align", words=words)
    refuses(isomerge, tmp_path, "merge", a, b, "-o", out, words=words)
    refuses(isomerge, tmp_path, "merge", a, b, "-o", out, "--dry-run", words=words)
    refuses(isomerge, tmp_path, "align", b, "--onto", a, "-o", out, words=words)
    for command, code in (("diff", 0), ("verify", 1)):
        if "config.json" not in words:
            refuses(isomerge, tmp_path, command, a, b, words=words)
            continue
        said = isomerge(command, a, b, *(["--spaces", "none"] if command == "diff" else []))
        assert (said.code, "isomerge " in said.err) == (code, False), "nothing is advised that would be refused"
        assert {w for w in words if w not in said.out + said.err} <= {AVERAGED, "(--no-align)", str(a), str(b)}


def test_different_architectures(stored: Callable, isomerge: Callable, tmp_path: Path) -> None:
    """GPT-2 and BERT."""
    a, b = stored("gpt2", 0), stored("bert", 0)
    against(tmp_path, isomerge, a, b, [str(a), str(b), "different architectures", "gpt2", "bert"])
    c = tmp_path / "c"
    c.mkdir()
    (c / "config.json").write_text(json.dumps({"model_type": "unheard"}))
    save_file({"x.weight": torch.ones(2, 2)}, c / "model.safetensors")
    for pair in ((a, c), (c, a)):  # that one of them has no spec is not what stands in the way
        words = ["different architectures", *("gpt2" if each is a else "unheard" for each in pair)]
        against(tmp_path, isomerge, *pair, [str(a), str(c), *words])


def test_model_types_of_one_family(stored: Callable, isomerge: Callable, tmp_path: Path) -> None:
    """Those whose tensors are of other kinds are refused by their types, whatever else their configs say, and not by
    a tensor that is missing or a key that differs; those of one kind are merged."""
    a, b = stored("llama", 0), tmp_path / "b"
    shutil.copytree(a, b)
    config, weights = config_of(a), load_file(a / "model.safetensors")
    (b / "config.json").write_text(json.dumps({**config, "model_type": "mistral"}))
    assert isomerge("merge", a, b, "-o", tmp_path / "kin", "--no-align").code == 0
    for part in ("q", "k", "v"):
        for layer in range(config["num_hidden_layers"]):
            name = f"model.layers.{layer}.self_attn.{part}_proj"
            weights[f"{name}.bias"] = torch.zeros(len(weights[f"{name}.weight"]))
    save_file(weights, b / "model.safetensors")
    own = {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "rms_norm_eps": 0.1}
    config = {key: value for key, value in config.items() if key not in ("attention_bias", "mlp_bias")}
    (b / "config.json").write_text(json.dumps({**config, **own}))
    for first, second, kinds in ((a, b, "(llama, qwen2)"), (b, a, "(qwen2, llama)")):
        against(tmp_path, isomerge, first, second, [str(first), str(second), f"different architectures {kinds}"])


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("hidden_size", 96, ["different shapes", "res is 48 and 96", "must be equal"]),
        ("vocab_size", 71, ["different vocabularies", "67 and 71", "must be equal", "--tokenizer-source union"]),
        (
            "num_hidden_layers",
            4,
            ["different numbers of layers", "encoder.layer: 4 and 3", "not compared", "slices", "isomerge widen"],
        ),
        ("intermediate_size", 44, ["different shapes", "ff is 40 and 44", "must be equal"]),
        ("num_attention_heads", 4, ["different shapes", "h is 6 and 4", "must be equal"]),
    ],
)
def test_different_sizes(
    key: str, value: int, words: list[str], stored: Callable, isomerge: Callable, tmp_path: Path, monkeypatch: Any
) -> None:
    """Hidden sizes, vocabularies, neurons, heads."""
    a = stored("bert", 0)  # before the toys' sizes are changed
    monkeypatch.setitem(BODY_OF_THREE, key, value)
    b = single("bert", tmp_path / "b")
    against(tmp_path, isomerge, a, b, [str(b), *words])


def test_files_of_other_programs(isomerge: Callable, stored: Callable, tmp_path: Path) -> None:
    """GGUF, by file and by folder, and a pipeline of diffusers: what to name instead."""
    model = stored("bert", 0)
    folder, pipeline = tmp_path / "gguf", tmp_path / "pipeline"
    folder.mkdir()
    (folder / "m.gguf").write_bytes(b"GGUF")
    shutil.copy(model / "config.json", folder)
    (pipeline / "transformer").mkdir(parents=True)
    shutil.copy(model / "config.json", pipeline / "transformer")
    (pipeline / "model_index.json").write_text("{}")
    for name in (folder, folder / "m.gguf"):
        refuses(isomerge, tmp_path, "inspect", name, words=[str(folder / "m.gguf"), "GGUF", "made from"])
    refuses(isomerge, tmp_path, "inspect", pipeline, words=["pipeline", str(pipeline / "transformer")])


def test_different_positions(stored: Callable, isomerge: Callable, tmp_path: Path, monkeypatch: Any) -> None:
    """A size that no config key of the spec states is found in the tensors."""
    a = stored("bert", 0)
    monkeypatch.setitem(BODY_OF_THREE, "max_position_embeddings", 40)
    b = single("bert", tmp_path / "b")
    words = ["position_embeddings.weight", "[32, 48]", "[40, 48]", "equal shapes"]
    against(tmp_path, isomerge, a, b, words)


LEGACY = {"rope_parameters": None, "rope_scaling": None}
SPELLINGS = {
    "legacy": lambda theta: {**LEGACY, "rope_theta": theta},
    "parameters": lambda theta: {**LEGACY, "rope_theta": None, "rope_parameters": {**ROPE, "rope_theta": theta}},
}


@pytest.mark.parametrize("one", SPELLINGS)
@pytest.mark.parametrize("two", SPELLINGS)
def test_rope_theta(one: str, two: str, copies: Callable, isomerge: Callable, tmp_path: Path) -> None:
    """Different bases are refused in either spelling; equal ones in two spellings are accepted."""
    a, b = copies("llama")
    reconfig(a, **SPELLINGS[one](10000.0))
    reconfig(b, **SPELLINGS[two](500000.0))
    against(tmp_path, isomerge, a, b, ["config.json", "rope", "10000.0", "500000.0", AVERAGED], retuned=True)
    reconfig(b, **SPELLINGS[two](10000))
    assert isomerge("merge", a, b, "-o", tmp_path / "out").code == 0


def test_default_rope_theta(copies: Callable, isomerge: Callable, tmp_path: Path) -> None:
    """A config without a base means the usual one."""
    a, b = copies("llama")
    reconfig(a, **SPELLINGS["legacy"](None))
    reconfig(b, **SPELLINGS["parameters"](10000.0))
    assert isomerge("verify", a, b, "-q").code == 1
    reconfig(b, **SPELLINGS["parameters"](20000.0))
    against(tmp_path, isomerge, a, b, ["config.json", "rope", AVERAGED], retuned=True)


@pytest.mark.parametrize("kind", [{"rope_type": "linear", "factor": 2.0}, {"type": "linear", "factor": 2.0}])
def test_rope_scaling(kind: dict[str, Any], copies: Callable, isomerge: Callable, tmp_path: Path) -> None:
    """Scaled positions are not plain ones."""
    a, b = copies("llama")
    reconfig(a, **SPELLINGS["legacy"](10000.0))
    reconfig(b, **{**SPELLINGS["legacy"](10000.0), "rope_scaling": kind})
    against(tmp_path, isomerge, a, b, ["config.json", "rope", "linear", AVERAGED], retuned=True)


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("bert", "hidden_act", "relu"),
        ("bert", "layer_norm_eps", 1e-5),
        ("llama", "hidden_act", "gelu"),
        ("llama", "rms_norm_eps", 0.1),
        ("gpt2", "activation_function", "relu"),
        ("gpt2", "scale_attn_by_inverse_layer_idx", True),
    ],
)
def test_different_functions(
    name: str, key: str, value: Any, copies: Callable, isomerge: Callable, tmp_path: Path
) -> None:
    """Equal weights, other functions."""
    a, b = copies(name)
    reconfig(b, **{key: value})
    words = [str(a), str(b), "config.json", key, repr(value), AVERAGED]
    against(tmp_path, isomerge, a, b, words, retuned=key.endswith("_eps"))


def test_sliding_window(copies: Callable, isomerge: Callable, tmp_path: Path) -> None:
    """Mistral with a window of 4096 tokens and Mistral without one."""
    a, b = copies("mistral")
    reconfig(a, sliding_window=4096)
    config = config_of(b)
    (b / "config.json").write_text(json.dumps({**config, "sliding_window": None}))
    against(tmp_path, isomerge, a, b, ["config.json", "sliding_window", "4096", AVERAGED], retuned=True)


def test_tied_and_untied(copies: Callable, stored: Callable, isomerge: Callable, tmp_path: Path) -> None:
    """A tied head cannot be averaged with an untied one, unless --untie; comparing them changes nothing."""
    a, _ = copies("llama")
    b, out, words = (
        stored("llama-tied", 0),
        tmp_path / "out",
        ["tie_word_embeddings", "cannot be averaged", "--untie"],
    )
    refuses(isomerge, tmp_path, "merge", a, b, "-o", out, words=words)
    refuses(isomerge, tmp_path, "merge", a, b, "-o", out, "--dry-run", words=words)
    refuses(isomerge, tmp_path, "merge", a, b, "-o", out, "--no-align", words=words)
    refuses(isomerge, tmp_path, "align", b, "--onto", a, "-o", out, words=words)
    assert isomerge("diff", a, b).code == 0
    assert isomerge("verify", a, b).code == 1
    assert isomerge("merge", a, b, "-o", out, "--no-align", "--untie").code == 0


# ---------------------------------------------------------------------------------------------------- options

OPTIONS = [
    (["--method", "linaer"], ["--method linaer", "did you mean linear"]),
    (["--method", "zzz"], ["--method zzz", "linear"]),
    (["--spaces", "neurons"], ["--spaces neurons", "gpt2", "default", "ff"]),
    (["--spaces", ""], ["--spaces", "empty", "default"]),
    (["--spaces", "paper,ff"], ["--spaces paper,ff", "alone"]),
    (["--spaces", "res:GL"], ["--spaces res:GL", "choose Perm"]),
    (["--layers", "first"], ["--layers first", "0-4", "tail:3"]),
    (["--layers", "7"], ["--layers 7", "layers 0 to 2"]),
    (["--layers", "0-3"], ["--layers 0-3", "layers 0 to 2"]),
    (["--layers", "2-1"], ["--layers 2-1", "layers 0 to 2"]),
    (["--layers", "tail:x"], ["--layers tail:x", "tail:3"]),
    (["--weights", "1"], ["--weights", "2 finite numbers"]),
    (["--weights", "1,2,3"], ["--weights", "2 finite numbers"]),
    (["--weights", "1,-1"], ["weights sum to zero", "normalize"]),
    (["--weights", "half,half"], ["--weights half,half", "one number per model", "0.7,0.3"]),
    (["--weights", ""], ["--weights", "one number per model"]),
    (["--dtype", "float8"], ["--dtype float8", "bfloat16"]),
    (["--out-shard-size", "big"], ["'big'", "not a size", "5GB"]),
    (["--out-shard-size", "0"], ["'0'", "not a size", "5GB"]),
    (["--out-shard-size", "-5GB"], ["'-5GB'", "not a size", "5GB"]),
    (["--weights", "0,5,0,5"], ["--weights", "2 finite numbers", "write 0.5,0.5 with a point"]),
    (["--method", "slerp", "--parameter", "t=0,5"], ["t=0,5", "write t=0.5 for one number"]),
    (["--search", "0,5"], ["--search", "write 0.5 with a point"]),
    (["--weights", "nan,1"], ["--weights"]),
    (["--weights", "inf,1"], ["--weights"]),
    (["--layers", "²"], ["--layers ²", "0-4"]),
    (["--layers", "tail:²"], ["--layers tail:²", "0-4"]),
]


@pytest.mark.parametrize(("options", "words"), OPTIONS, ids=["".join(o) for o, _ in OPTIONS])
def test_bad_options(
    options: list[str], words: list[str], stored: Callable, isomerge: Callable, tmp_path: Path
) -> None:
    """Every option that can be wrong."""
    a, b = stored("gpt2", 0), stored("gpt2", 5)
    refuses(isomerge, tmp_path, "merge", a, b, "-o", tmp_path / "out", *options, words=words)


@pytest.mark.parametrize(
    "options", [["--method", "linaer"], ["--weights", "1"], ["--dtype", "float8"], ["--out-shard-size", "big"], []]
)
def test_dry_run_checks_everything(
    options: list[str], stored: Callable, isomerge: Callable, tmp_path: Path
) -> None:
    """The help promises: check everything. An empty list of options: the output folder is not empty."""
    (tmp_path / "out").mkdir()
    if not options:
        (tmp_path / "out" / "file").touch()
    a, b = stored("gpt2", 0), stored("gpt2", 5)
    refuses(isomerge, tmp_path, "merge", a, b, "-o", tmp_path / "out", "--dry-run", *options, words=[])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--source-base", "BASE"], ["--source-base"]),
        (["--onto", "B", "--anchor", "none"], ["--onto", "--anchor none"]),
        (["--onto", "C"], ["--onto", "name one of the models"]),
        (["--method", "fisher", "--stats", "no", "--stats", "no"], ["no: not a readable statistics file"]),
        (["--max-memory", "1kB"], ["--max-memory"]),
        (["--out", "outer", "--overwrite"], ["outer holds", "inner", "--overwrite would remove it"]),
    ],
    ids=lambda x: " ".join(x) if x[0].startswith("--") else "",
)
@pytest.mark.parametrize("dry", [["--dry-run"], []], ids=["dry", "real"])
def test_a_dry_run_refuses_what_a_run_refuses(
    options: list[str], words: list[str], dry: list[str], stored: Callable, isomerge: Callable, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """In the same words."""
    monkeypatch.chdir(tmp_path)
    a, b, c = stored("gpt2", 0), stored("gpt2", 5), stored("gpt2", 6)
    shutil.copytree(a, tmp_path / "outer")
    inner = shutil.copytree(b, tmp_path / "outer" / "inner")
    options = [{"BASE": c, "B": inner, "C": c}.get(word, word) for word in options]
    refuses(isomerge, tmp_path, "merge", a, inner, "-o", "out", *options, *dry, words=words)


def test_a_dry_run_of_an_alignment_refuses_what_a_run_refuses(
    stored: Callable, isomerge: Callable, tmp_path: Path
) -> None:
    """Soft matches, and a folder that holds the model."""
    a, outer = stored("gpt2", 0), tmp_path / "outer"
    shutil.copytree(a, outer)
    inner = shutil.copytree(stored("gpt2", 5), outer / "inner")
    for dry in (["--dry-run"], []):
        refuses(
            isomerge, tmp_path, "align", inner, "--onto", a, "-o", outer, "--overwrite", *dry, words=["outer holds"]
        )
        soft = ["--match", "ot-wts", *dry]
        refuses(
            isomerge, tmp_path, "align", inner, "--onto", a, "-o", tmp_path / "x", *soft, words=["--match ot-wts"]
        )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--data", "no.jsonl"], ["--data no.jsonl", "no such file"]),
        (["--learn", "no.jsonl"], ["--learn no.jsonl", "no such file"]),
        (["--learn", "math:nothing"], ["--learn math:nothing: the module math has no function nothing"]),
        (["--learn", "no/such/set:train"], ["--learn no/such/set:train"]),
        (["--learn", "ids.safetensors", "--learn-target", "labels", "--device", "abacus"], ["--device abacus"]),
        (["--data", ""], ["--data is empty", "leave it out"]),
        (["--learn", " "], ["--learn is empty"]),
        (["--repair", ""], ["--repair is empty"]),
        (["--stats-src", "no", "--stats-anchor", "no"], ["not a readable statistics file", "isomerge stats"]),
        (["--stats-src", "ids.safetensors", "--stats-anchor", "ids.safetensors"], ["not a statistics file"]),
        (["--data", "wide.safetensors"], ["wide.safetensors", "vocabulary"]),
        (["--search", "5"], ["--search", "--data"]),
        (["--data", "ids.safetensors", "--evidence", "guess"], ["--evidence guess"]),
        (["--learn", "ids.safetensors", "--spaces", "paper"], ["--spaces paper", "weights alone"]),
        (["--learn", "ids.safetensors", "--batch-size", "0"], ["--batch-size 0"]),
        (["--learn", "ids.safetensors", "--no-align"], ["--no-align"]),
    ],
    ids=lambda x: "".join(x) if x and x[0].startswith("--") else "",
)
@pytest.mark.parametrize("dry", [["--dry-run"], []], ids=["dry", "real"])
def test_data_options(
    options: list[str], words: list[str], dry: list[str], stored: Callable, isomerge: Callable, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Data and statistics that are not there or do not fit, in a dry run as in a real one."""
    monkeypatch.chdir(tmp_path)
    save_file({"input_ids": torch.randint(1, 60, (6, 9))}, "ids.safetensors")
    save_file({"input_ids": torch.full((6, 9), 900)}, "wide.safetensors")
    a, b = stored("llama", 0), stored("llama", 5)
    refuses(isomerge, tmp_path, "merge", a, b, "-o", tmp_path / "out", *options, *dry, words=words)


def test_output_folder_is_not_empty(stored: Callable, isomerge: Callable, tmp_path: Path) -> None:
    """Neither a filled folder nor a file is overwritten, nor is an input."""
    a, b = stored("gpt2", 0), stored("gpt2", 5)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "file").write_text("precious")
    (tmp_path / "file").write_text("precious")
    for out in (tmp_path / "out", tmp_path / "file"):
        refuses(isomerge, tmp_path, "merge", a, b, "-o", out, words=[str(out), "not an empty folder"])
    refuses(isomerge, a.parent, "merge", a, b, "-o", a, words=[str(a), "is read"])


def test_output_folder_names_the_option(stored: Callable, isomerge: Callable, tmp_path: Path) -> None:
    """The fix that is named must exist."""
    (tmp_path / "file").touch()
    a, b = stored("gpt2", 0), stored("gpt2", 5)
    refuses(isomerge, tmp_path, "merge", a, b, "-o", tmp_path, words=["--overwrite"])


def test_current_folder_is_gone(stored: Callable, isomerge: Callable, tmp_path: Path) -> None:
    """A shell that stands in a folder which was removed: one sentence, whatever the paths are."""
    here, gone = Path.cwd(), tmp_path / "gone"
    gone.mkdir()
    os.chdir(gone)
    try:
        gone.rmdir()
        said = isomerge("merge", stored("gpt2", 0), stored("gpt2", 5), "-o", tmp_path / "out", "--overwrite")
    finally:
        os.chdir(here)
    assert (said.code, said.out) == (2, "")
    assert (
        said.err
        == "isomerge: the current folder was removed: change to another one (cd), and run the command again\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_files_that_cannot_be_written(stored: Callable, isomerge: Callable, tmp_path: Path) -> None:
    """discover and stats write one file each: names that no file can have, and folders in its place."""
    folder = tmp_path / "folder"
    folder.mkdir()
    save_file({"input_ids": torch.randint(1, 60, (6, 9))}, tmp_path / "ids.safetensors")
    for out, words in ((tmp_path / ("a" * 300), ["File name too long"]), (folder, ["is a folder"])):
        for command in (["discover"], ["stats", "--data", tmp_path / "ids.safetensors"]):
            name, *more = command
            words = [*words, str(out)]
            refuses(isomerge, tmp_path, name, stored("gpt2", 0), *more, "-o", out, "--overwrite", words=words)


def test_one_model(stored: Callable, isomerge: Callable, tmp_path: Path) -> None:
    """A merge of one."""
    words = ["at least two models"]
    refuses(isomerge, tmp_path, "merge", stored("gpt2", 0), "-o", tmp_path / "out", words=words)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--learn", "ids.safetensors"], ["--learn"]),
        (["--data", "ids.safetensors", "--search", "3"], ["--search"]),
        (["--anchor", "none"], ["--anchor"]),
        (["--match", "git-rebasin"], ["--match"]),
    ],
    ids=lambda x: x[-2] if x[0].startswith("--") and len(x) > 1 else "",
)
def test_nothing_to_match(
    options: list[str], words: list[str], stored: Callable, isomerge: Callable, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """What only a match looks at, where there is one model alone, and where no match is made: it was ignored."""
    monkeypatch.chdir(tmp_path)
    save_file({"input_ids": torch.randint(1, 60, (6, 9))}, "ids.safetensors")
    a, b, out = stored("gpt2", 0), stored("gpt2", 5), tmp_path / "out"
    alone = ["merge", a, "-o", out, "--method", "passthrough"]
    refuses(isomerge, tmp_path, *alone, *options, words=["one model alone", *words])
    unmatched = ["merge", a, b, "-o", out, "--no-align", *options]
    refuses(isomerge, tmp_path, *unmatched, words=["--no-align leaves nothing to match", *words])
    if "--learn" in options:  # a method that looks at data itself does not learn from others
        method = ["--method", "fisher", "--data", "ids.safetensors"]
        refuses(isomerge, tmp_path, *unmatched, *method, words=["--no-align", "--learn"])


@pytest.mark.parametrize("ref", ["nowhere", "./no/such/folder", "no/such/folder", "/no/such"])
def test_missing_folder(ref: str, stored: Callable, isomerge: Callable, tmp_path: Path) -> None:
    """A path to nothing."""
    for models in ((ref, stored("gpt2", 0)), (stored("gpt2", 0), ref)):
        refuses(
            isomerge, tmp_path, "merge", *models, "-o", tmp_path / "out", words=[ref, "no such folder", "org/name"]
        )


def test_missing_file(copies: Callable, isomerge: Callable, tmp_path: Path) -> None:
    """A file that is no checkpoint, and a weights file that is not there."""
    a, b = copies("gpt2")
    (tmp_path / "notes.txt").write_text("hello")
    refuses(isomerge, tmp_path, "diff", a, tmp_path / "notes.txt", words=["notes.txt", "config.json"])
    refuses(isomerge, tmp_path, "diff", a, b / "other.safetensors", words=["other.safetensors", "no such folder"])


def test_hub_out_of_reach(stored: Callable, isomerge: Callable, tmp_path: Path, monkeypatch: Any) -> None:
    """A hub id while offline."""
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    words = ["isomerge-tests/no-such-model", "no such folder", "hub", "check the path"]
    ref = "isomerge-tests/no-such-model"
    refuses(isomerge, tmp_path, "merge", ref, stored("gpt2", 0), "-o", tmp_path / "out", words=words)
    refuses(isomerge, tmp_path, "inspect", f"{ref}@main", words=words)


def test_pickles(copies: Callable, isomerge: Callable, tmp_path: Path) -> None:
    """A .bin is not opened unasked; asked for, it is; a hostile one never is."""
    a, b = copies("gpt2")
    torch.save(load_file(b / "model.safetensors"), b / "pytorch_model.bin")
    (b / "model.safetensors").unlink()
    words = ["b/pytorch_model.bin", "pickle", "--allow-pickle", "safetensors"]
    refuses(isomerge, tmp_path, "merge", a, b, "-o", tmp_path / "out", words=words)
    assert isomerge("merge", a, b, "-o", tmp_path / "out", "--allow-pickle", "-q").code == 0
    torch.save({"x": print}, b / "pytorch_model.bin")
    words = ["b/pytorch_model.bin", "not loaded", "safetensors"]
    refuses(isomerge, tmp_path, "merge", a, b, "-o", tmp_path / "no", "--allow-pickle", words=words)


# ----------------------------------------------------------------------------------------------- recipes

RECIPES = [
    ("merge_metod: linear", ["unknown key `merge_metod`", "did you mean `merge_method`"]),
    ("merge_method: linear\nalgin: {enabled: true}", ["unknown key `algin`", "did you mean `align`"]),
    ("merge_method: linear\nalign: {spcaes: ff}", ["unknown key `align.spcaes`", "did you mean `spaces`"]),
    ("merge_method: linear\nparameters: {normalise: true}", ["`parameters.normalise`", "`normalize`"]),
    ("merge_method: linear\nparameters: {normalize: 3}", ["`parameters.normalize` is 3", "true or false"]),
    ("merge_method: ties", ["ties", "needs a base model", "base_model"]),
    ("merge_method: linear\nparameters: {weight: []}", ["`parameters.weight`", "empty list"]),
    ("merge_method: linear\nparameters: {weight: [[1]]}", ["`parameters.weight`", "without lists in it"]),
    (
        "merge_method: linear\nparameters: {weight: [{filtre: mlp, value: 1}]}",
        ["`parameters.weight`", "`filter` and `value`"],
    ),
    ("merge_method: linear\ndtype: float8", ["`dtype`", "bfloat16"]),
    ("merge_method: linear\nalign: {enabled: maybe}", ["`align.enabled`", "boolean"]),
    ("merge_method: [linear]", ["`merge_method`", "string"]),
    ("merge_method: linaer", ["linaer", "did you mean linear"]),
    ("merge_method: linear\nalign: {spaces: neurons}", ["`align.spaces` neurons", "choose from"]),
    ("merge_method: 'linear", ["not valid YAML"]),
    ("dtype: float32", ["`merge_method`", "it is missing"]),
]


@pytest.mark.parametrize(("text", "words"), RECIPES)
def test_bad_recipe(text: str, words: list[str], stored: Callable, isomerge: Callable, tmp_path: Path) -> None:
    """Misspelt keys with a suggestion, wrong values, no YAML at all."""
    models = "".join(f"- model: {stored('gpt2', seed)}\n" for seed in (0, 5))
    (tmp_path / "recipe.yml").write_text(f"models:\n{models}{text}\n")
    path = [] if "linaer" in text or "neurons" in text or "ties" in text else ["recipe.yml"]
    refuses(isomerge, tmp_path, "merge", tmp_path / "recipe.yml", "-o", tmp_path / "out", words=[*path, *words])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("models: [a, b]\nmerge_method: linear", ["recipe.yaml", "`models.0`"]),
        ("models: [{model: a, parameters: {wieght: 1}}]\nmerge_method: linear", ["`models.0.parameters.wieght`", "`weight`"]),
        ("models: [{modle: a}]\nmerge_method: linear", ["`models.0.modle`", "did you mean `model`"]),
        ("models: [{model: a, parameters: {weight: heavy}}]\nmerge_method: linear", ["weight", "number"]),
        ("- just\n- a list", ["recipe.yaml", "mapping"]),
        ("", ["recipe.yaml", "mapping"]),
        ("models: []\nmerge_method: linear", ["models"]),
    ],
)  # fmt: skip
def test_bad_recipe_models(text: str, words: list[str], isomerge: Callable, tmp_path: Path) -> None:
    """Wrong ways to list models."""
    (tmp_path / "recipe.yaml").write_text(text)
    refuses(isomerge, tmp_path, "merge", tmp_path / "recipe.yaml", "-o", tmp_path / "out", words=words)


def test_recipe_weight_is_nan(stored: Callable, isomerge: Callable, tmp_path: Path) -> None:
    """YAML can spell NaN."""
    a, b = stored("gpt2", 0), stored("gpt2", 5)
    text = f"models: [{{model: {a}, parameters: {{weight: .nan}}}}, {{model: {b}}}]\nmerge_method: linear\n"
    (tmp_path / "recipe.yml").write_text(text)
    refuses(isomerge, tmp_path, "merge", tmp_path / "recipe.yml", "-o", tmp_path / "out", words=["weight"])


def test_missing_recipe(isomerge: Callable, tmp_path: Path) -> None:
    """A recipe that is not there."""
    words = ["recipe.yml", "cannot read"]
    refuses(isomerge, tmp_path, "merge", tmp_path / "recipe.yml", "-o", tmp_path / "out", words=words)


# ------------------------------------------------------------------------------------------- specs and patches


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("model gpt2\nspace h Perm[l]\n", ["bad.spec", "line 2", "NAME: GROUP"]),
        ("model gpt2\nspace h: Prem[l]\n", ["bad.spec", "line 2", "Prem", "Perm"]),
        ("model gpt2\nsize h = n_head +\n", ["bad.spec", "line 2"]),
        ("model gpt2\nsize h = __import__('os')\n", ["bad.spec", "line 2"]),
        ("model gpt2\nwte.weight   (vocab res\n", ["bad.spec", "line 2"]),
        ("model gpt2\nspace h: Perm[l]\n", ["bad.spec", "h"]),
        ("model gpt2\nsize h = n_head\nspace h: Perm\n", ["bad.spec", "space h", "no line"]),
        ("model gpt2\nsize res = n_embd\nwte.weight  vocab res\n", ["bad.spec", "transformer."]),
    ],
)
def test_bad_spec(text: str, words: list[str], stored: Callable, isomerge: Callable, tmp_path: Path) -> None:
    """A spec file with a syntax error: file and line."""
    (tmp_path / "bad.spec").write_text(text)
    a, b = stored("gpt2", 0), stored("gpt2", 5)
    out = tmp_path / "out"
    refuses(isomerge, tmp_path, "merge", a, b, "-o", out, "--spec", tmp_path / "bad.spec", words=words)


def test_missing_spec(stored: Callable, isomerge: Callable, tmp_path: Path) -> None:
    """A spec file that is not there."""
    words = ["none.spec", "cannot read"]
    refuses(isomerge, tmp_path, "inspect", stored("gpt2", 0), "--spec", tmp_path / "none.spec", words=words)


@pytest.fixture(scope="module")
def patch(stored: Callable, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An alignment of two GPT-2 toys."""
    import isomerge

    path = tmp_path_factory.mktemp("patch") / "gpt2.safetensors"
    isomerge.align(stored("gpt2", 5), onto=stored("gpt2", 0), spaces="default")[0].save(path)
    return path


def test_patch_for_another_architecture(patch: Path, stored: Callable, isomerge: Callable, tmp_path: Path) -> None:
    """A patch of GPT-2 on BERT, and on a GPT-2 of other sizes."""
    out = tmp_path / "out"
    words = [str(patch), "made for gpt2", "bert"]
    refuses(isomerge, tmp_path, "apply", patch, stored("bert", 0), "-o", out, words=words)


def test_patch_for_other_sizes(patch: Path, isomerge: Callable, tmp_path: Path) -> None:
    """A patch of GPT-2 with six heads on one with four."""
    import transformers as tf

    config = tf.GPT2Config(vocab_size=67, n_embd=48, n_layer=3, n_head=4, n_positions=32, n_inner=40)
    tf.GPT2LMHeadModel(config).save_pretrained(tmp_path / "b")
    words = [str(patch), "made for", "but the model has"]
    refuses(isomerge, tmp_path, "apply", patch, tmp_path / "b", "-o", tmp_path / "out", words=words)


def test_no_patch(stored: Callable, isomerge: Callable, tmp_path: Path) -> None:
    """Files that are no patch."""
    a, out = stored("gpt2", 0), tmp_path / "out"
    refuses(isomerge, tmp_path, "apply", tmp_path / "no", a, "-o", out, words=["no: not a readable alignment"])
    (tmp_path / "no").write_text("hello")
    refuses(isomerge, tmp_path, "apply", tmp_path / "no", a, "-o", out, words=["no: not a readable alignment"])
    words = ["model.safetensors", "not an alignment"]
    refuses(isomerge, tmp_path, "apply", a / "model.safetensors", a, "-o", out, words=words)


def altered(
    patch: Path, to: Path, tensors: Callable[[dict], Any] | None = None, header: Callable[[dict], Any] | None = None
) -> Path:
    """A copy of a patch with other contents."""
    from safetensors import safe_open

    with safe_open(patch, "pt") as file:
        found = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        head = json.loads(file.metadata()["isomerge"])
    for change, content in ((tensors, found), (header, head)):
        if change is not None:
            change(content)
    save_file(found, to, metadata={"isomerge": json.dumps(head)})
    return to


PATCHES: dict[str, dict[str, Any]] = {
    "no model_type": {"header": lambda h: h.pop("model_type")},
    "no spaces": {"header": lambda h: h.pop("spaces")},
    "no sizes": {"header": lambda h: h.pop("sizes")},
    "spaces of another kind": {"header": lambda h: h.update(spaces=[1])},
    "wrong rank": {"tensors": lambda t: t.update({"qk[0]": t["qk[0]"][0, 0].clone()})},
    "wrong heads": {"tensors": lambda t: t.update({"qk[0]": t["qk[0]"][:3].clone()})},
    "no permutation": {"tensors": lambda t: t["h[0]"].fill_(0)},
    "index too large": {"tensors": lambda t: t["h[0]"].fill_(99)},
    "singular": {"tensors": lambda t: t["qk[0]"].zero_()},
    "NaN": {"tensors": lambda t: t["qk[0]"].fill_(float("nan"))},
    "NaN shift": {"tensors": lambda t: t["shift.vb[0]"].fill_(float("nan"))},
    "wrong shift": {"tensors": lambda t: t.update({"shift.vb[0]": t["shift.vb[0]"].flatten()[:5].clone()})},
    "layer too large": {"tensors": lambda t: t.update({"qk[9]": t["qk[0]"].clone()})},
    "no layer": {"tensors": lambda t: t.update({"qk": t["qk[0]"].clone()})},
    "layer is text": {"tensors": lambda t: t.update({"qk[x]": t["qk[0]"].clone()})},
    "shift of a layer too large": {"tensors": lambda t: t.update({"shift.vb[9]": t["shift.vb[0]"].clone()})},
    "residual": {"tensors": lambda t: t.update({"res": torch.arange(48)})},
}


@pytest.mark.parametrize("kind", PATCHES)
def test_damaged_patch(kind: str, patch: Path, stored: Callable, isomerge: Callable, tmp_path: Path) -> None:
    """A patch file that cannot be an element of the group."""
    bad = altered(patch, tmp_path / "bad.safetensors", **PATCHES[kind])
    refuses(isomerge, tmp_path, "apply", bad, stored("gpt2", 0), "-o", tmp_path / "out", words=["bad.safetensors"])


def test_save_alignment_nowhere(stored: Callable, isomerge: Callable, tmp_path: Path) -> None:
    """--save-alignment into a folder that is not there, or in a folder's place: told before anything is aligned."""
    a, b = stored("gpt2", 0), stored("gpt2", 5)
    for where in (tmp_path / "no" / "x.safetensors", tmp_path):
        said = isomerge("align", b, "--onto", a, "-o", tmp_path / "out", "--save-alignment", where)
        assert said.code == 2
        assert f"--save-alignment {where}" in said.err
    assert list(tmp_path.iterdir()) == []


def test_json_nowhere(stored: Callable, isomerge: Callable, tmp_path: Path) -> None:
    """--json into a folder that is not there: told, though the comparison itself was done."""
    said = isomerge("diff", stored("gpt2", 0), stored("gpt2", 5), "-q", "--json", tmp_path / "no" / "x.json")
    assert said.code == 2
    assert said.err.startswith("isomerge: --json")
    assert len(said.err.splitlines()) == 1


# ------------------------------------------------------------------------------------------- as a real program


@pytest.mark.parametrize("kind", ["truncated", "offline"])
def test_as_a_program(kind: str, copies: Callable, tmp_path: Path) -> None:
    """The same through the installed command, in a process of its own."""
    a, b = copies("gpt2")
    truncated(a, b)
    before = listing(tmp_path)
    models = [str(a), str(b) if kind == "truncated" else "isomerge-tests/no-such-model"]
    program = str(Path(sys.executable).with_name("isomerge"))
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "HF_HOME": str(tmp_path.parent / "hf")}
    command = [program, "merge", *models, "-o", str(tmp_path / "out")]
    said = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert said.returncode == 2
    assert said.stdout == ""
    assert len(said.stderr.splitlines()) == 1
    assert said.stderr.startswith("isomerge: ")
    assert ("truncated" if kind == "truncated" else "no-such-model") in said.stderr
    assert listing(tmp_path) == before


@pytest.mark.parametrize(("left", "said"), [(True, "stopped; start again to go on"), (False, "stopped")])
def test_ctrl_c_is_one_sentence(
    left: bool, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 130, no traceback; whether the same command goes on is said."""
    from isomerge.cli.app import main
    from isomerge.run import writing_run as run

    a, b = (str(single("gpt2", tmp_path / name, seed)) for name, seed in (("a", 0), ("b", 5)))

    def interrupted(*given: object, **named: object) -> None:
        raise KeyboardInterrupt

    if left:
        monkeypatch.setattr(run.StreamWriter, "done", interrupted)
    else:
        monkeypatch.setattr("isomerge.commands.merge_door.planned_merge", interrupted)
    monkeypatch.setattr(sys, "argv", ["isomerge", "merge", a, b, "-o", str(tmp_path / "out")])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 130
    assert capsys.readouterr().err.strip().splitlines()[-1] == f"isomerge: {said}"
    assert (tmp_path / ".out.partial").exists() == left
