"""Every recipe of examples/recipes merges: its placeholders are tiny models, adapters, statistics and texts made
here."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf
import yaml
from safetensors.torch import load_file
from tokenizers import AddedToken

import isomerge
from depth import EVERY
from observe.data.checkpoints import WORDS, save_tokenizer
from toys import config_of, overwrite, randomise

FOLDER = Path(__file__).parents[2] / "examples" / "recipes"
RECIPES = sorted(FOLDER.glob("*.y*ml"))
BODY = {
    "vocab_size": len(WORDS), "hidden_size": 24, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 6, "intermediate_size": 20, "max_position_embeddings": 32,
    "tie_word_embeddings": False, "pad_token_id": 0,
}  # fmt: skip
TUNED = ("org/instruct", "org/code", "org/math")


def llama(folder: Path, seed: int, **changes: Any) -> Path:
    """A random Llama with a tokenizer of single words."""
    model = tf.LlamaForCausalLM(tf.LlamaConfig(**{**BODY, **changes}))
    randomise(model, seed)
    model.save_pretrained(folder)
    return save_tokenizer(folder, special=False)


def tuned(base: Path, folder: Path, seed: int) -> Path:
    """A copy whose every weight is moved a little."""
    llama(folder, 0, num_hidden_layers=config_of(base)["num_hidden_layers"])
    rng = torch.Generator().manual_seed(seed)
    found = load_file(base / "model.safetensors")
    overwrite(folder, {n: x + 0.03 * torch.randn(x.shape, generator=rng) for n, x in found.items()})
    return folder


def texts(path: Path) -> Path:
    """Sentences of the tokenizer's words."""
    rng = torch.Generator().manual_seed(1)
    drawn = torch.randint(WORDS.index("a"), len(WORDS), (24, 9), generator=rng).tolist()
    path.write_text("".join(json.dumps({"text": " ".join(WORDS[k] for k in row)}) + "\n" for row in drawn))
    return path


def with_word(folder: Path, seed: int, words: list[str]) -> Path:
    """A model whose vocabulary has further tokens."""
    llama(folder, seed, vocab_size=len(WORDS) + len(words))
    tokenizer = tf.AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens([AddedToken(word, special=word.startswith("<|")) for word in words])
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """``stand_in("org/base")``: what is merged in its place; an unknown placeholder fails."""
    root, made = tmp_path_factory.mktemp("stand-ins"), {}

    def adapter(name: str, path: Path) -> Path:
        isomerge.extract_lora(find(f"org/{name}"), find("org/base"), out=path, rank=2)
        return path

    def statistics(name: str, path: Path) -> Path:
        how = {"kinds": "regmean,kfac", "length": 32, "out": path}
        isomerge.stats(find(f"org/{name}"), data=find("data/texts.jsonl"), **how)
        return path

    makers: dict[str, Callable[[Path], Path]] = {
        "org/base": lambda path: llama(path, 0),
        **{name: lambda path, k=k: tuned(Path(find("org/base")), path, k) for k, name in enumerate(TUNED, 1)},
        **{f"org/seed-{tag}": lambda path, k=k: llama(path, k, num_hidden_layers=1) for k, tag in enumerate("abc", 5)},
        "org/deep-instruct": lambda path: llama(path, 8, num_hidden_layers=12),
        "org/deep-code": lambda path: tuned(Path(find("org/deep-instruct")), path, 9),
        "org/lora-instruct": lambda path: adapter("instruct", path),
        "org/lora-code": lambda path: adapter("code", path),
        "org/english": lambda path: with_word(path, 10, ["hello"]),
        "org/german": lambda path: with_word(path, 11, ["hallo", "welt", "<|end|>"]),
        "stats/instruct.safetensors": lambda path: statistics("instruct", path),
        "stats/code.safetensors": lambda path: statistics("code", path),
        "data/texts.jsonl": texts,
    }  # fmt: skip

    def find(name: str) -> str:
        assert name in makers, f"examples/recipes use {name}: say in makers what stands for it"
        if name not in made:
            made[name] = makers[name](root / name.replace("/", "-"))
        return str(made[name])

    return find


def mapped(content: Any, stand_in: Callable[[str], str]) -> Any:
    """A recipe with every string that has a slash, a placeholder, replaced; ``model+adapter`` part by part."""
    if isinstance(content, dict):
        return {key: mapped(value, stand_in) for key, value in content.items()}
    if isinstance(content, list):
        return [mapped(value, stand_in) for value in content]
    if isinstance(content, str) and "/" in content:
        return "+".join(stand_in(part) for part in content.split("+"))
    return content


def references(recipe: dict[str, Any]) -> Iterator[str]:
    """The models that a recipe merges, by their names there."""
    for entry in recipe.get("models") or [s for part in recipe["slices"] for s in part["sources"]]:
        yield entry["model"]


@torch.no_grad()
@pytest.mark.parametrize("path", [p for p in RECIPES if EVERY or p.stem != "anchor-none"], ids=lambda p: p.stem)
def test_recipe_merges(path: Path, stand_in: Callable[[str], str], tmp_path: Path) -> None:
    """The output loads and its logits are finite; method, alignment and dtype are those of the recipe."""
    text = path.read_text()
    assert text.startswith("# "), "say in the first line what the recipe does"
    given = mapped(yaml.safe_load(text), stand_in)
    (tmp_path / "recipe.yml").write_text(yaml.safe_dump(given))
    report = isomerge.merge(tmp_path / "recipe.yml", out=tmp_path / "out")
    block = given.get("align", False)
    assert report["method"] == given["merge_method"]
    assert report["align"] == (block if isinstance(block, bool) else block.get("enabled", True))
    stored = load_file(tmp_path / "out" / "model.safetensors")
    assert {x.dtype for x in stored.values()} == {getattr(torch, given.get("dtype", "float32"))}
    for file in (tmp_path / "out").glob("alignment*"):
        file.unlink()
    model = tf.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32).eval()
    ids = torch.arange(2, len(WORDS)).reshape(1, -1)
    logits = model(ids).logits
    assert logits.isfinite().all()
    for name in references(given):
        if report["method"] == "passthrough":
            continue
        whole = name.partition("+")[0]  # with an adapter, at least not the model without it
        parent = tf.AutoModelForCausalLM.from_pretrained(whole, dtype=torch.float32).eval()(ids).logits
        words = min(parent.shape[-1], logits.shape[-1])
        # every recipe mixes: its output is none of its inputs (bfloat16 rounding alone changes less than 1 %)
        assert (parent[..., :words] - logits[..., :words]).abs().max() > 0.02 * parent.abs().max(), name


def test_there_are_recipes() -> None:
    """The folder was found, and its recipes name every placeholder once they are read."""
    assert len(RECIPES) >= 12
    assert all("org/" in path.read_text() for path in RECIPES)
