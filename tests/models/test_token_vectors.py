"""Sums for tokens that a model lacks, against scikit-learn's pursuit, least squares over all subsets, and planted
sums; models with another tokenizer against what they were."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf
from sklearn.linear_model import orthogonal_mp
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import isomerge
from isomerge.checkpoint.opening import open_checkpoint
from isomerge.checkpoint.vocabulary import pieces_of, same_tokens, spelled
from isomerge.errors import IsomergeError
from isomerge.merging.opened_models import opened
from isomerge.merging.recipe.merge_recipe import _tokenizer
from isomerge.merging.recipe.recipe_request import request_of_recipe
from isomerge.models.vocabulary_views import matching_pursuit, nearest, summed, with_vocabulary
from toys import randomise

SMALL = {
    "hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8,
    "num_key_value_heads": 1, "head_dim": 6, "max_position_embeddings": 16,
}  # fmt: skip
WORDS = ["[UNK]", "</s>", *"abcdefghij"]
EMBEDDINGS, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def words(tokens: list[str]) -> PreTrainedTokenizerFast:
    """A tokenizer of single words."""
    made = Tokenizer(models.WordLevel({word: k for k, word in enumerate(tokens)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="[UNK]", eos_token="</s>")


def llama(folder: Path, tokenizer: Any, *, rows: int = 0, seed: int = 0, tied: bool = False, **more: Any) -> Path:
    """A small Llama with a tokenizer."""
    ids = {"eos_token_id": tokenizer.eos_token_id, "bos_token_id": None}
    config = tf.LlamaConfig(
        **{**SMALL, "vocab_size": rows or len(tokenizer), "tie_word_embeddings": tied, **ids, **more}
    )
    model: Any = tf.LlamaForCausalLM(config).double()
    randomise(model, seed)
    model.tie_weights()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("terms", [1, 3, 7])
def test_pursuit_is_that_of_scikit_learn(terms: int) -> None:
    """The same rows and coefficients, whatever the rows' lengths."""
    dictionary, targets = random(40, 20), random(300, 20, seed=1)
    rows, found = matching_pursuit(targets, dictionary * torch.linspace(0.1, 9, 40)[:, None].double(), terms)
    wanted = (
        torch.from_numpy(
            orthogonal_mp(
                (dictionary / dictionary.norm(dim=1, keepdim=True)).T.numpy(),
                targets.T.numpy(),
                n_nonzero_coefs=terms,
            )
        )
        .reshape(40, 300)
        .T
    )
    made = torch.zeros(300, 40, dtype=torch.float64).scatter_add_(1, rows, found)
    scales = dictionary.norm(dim=1) * torch.linspace(0.1, 9, 40).double()
    assert float((made * scales - wanted).abs().max()) < 1e-9


def test_pursuit_is_the_best_subset_where_rows_are_orthogonal() -> None:
    """Greedy is best there: as by trying all subsets."""
    basis, _ = torch.linalg.qr(random(6, 6))
    targets = random(8, 6, seed=2)
    rows, coefficients = matching_pursuit(targets, basis, 3)
    left = (targets - summed(basis, rows, coefficients)).norm(dim=1)
    for target, gap in zip(targets, left, strict=True):
        every = (
            torch.linalg.lstsq(basis[list(chosen)].T, target[:, None]).solution
            for chosen in combinations(range(6), 3)
        )
        tried = zip(combinations(range(6), 3), every, strict=True)
        best = min(float((basis[list(chosen)].T @ x - target[:, None]).norm()) for chosen, x in tried)
        assert float(gap) == pytest.approx(best, abs=1e-12)


def test_pursuit_ends_where_nothing_is_left() -> None:
    """Rows that are there twice, rows of zeros and targets in the dictionary give no wild numbers."""
    dictionary = random(5, 8)
    dictionary = torch.cat([dictionary, dictionary, torch.zeros(2, 8, dtype=torch.float64)])
    targets = torch.cat(
        [dictionary[:3], torch.zeros(1, 8, dtype=torch.float64), dictionary[:1] + 2 * dictionary[1:2]]
    )
    rows, coefficients = matching_pursuit(targets, dictionary, 8)
    assert bool(coefficients.isfinite().all())
    assert float(coefficients.abs().max()) < 10
    assert float((summed(dictionary, rows, coefficients) - targets).abs().max()) < 1e-9


def test_nearest_are_by_cosine() -> None:
    """Lengths do not count; weights sum to one."""
    dictionary, targets = random(9, 4), random(5, 4, seed=3)
    rows, weights = nearest(targets, 7 * dictionary, 2)
    cosines = torch.nn.functional.cosine_similarity(targets[:, None], dictionary[None], dim=2)
    assert torch.equal(rows, cosines.topk(2).indices)
    assert float((weights.sum(1) - 1).abs().max()) < 1e-12


@pytest.mark.parametrize("tied", [False, True])
def test_the_same_tokenizer_is_the_identity(tied: bool, tmp_path: Path) -> None:
    """Every byte of every tensor, and rows of padding."""
    one = llama(tmp_path / "one", words(WORDS), rows=16, tied=tied)
    alone = tmp_path / "tokenizer"
    words(WORDS).save_pretrained(alone)
    for tokenizer in (one, llama(tmp_path / "two", words(WORDS), seed=1), alone):
        out = tmp_path / f"out-{Path(tokenizer).name}"
        report = isomerge.transplant_tokenizer(one, tokenizer=tokenizer, out=out)
        assert report["filled"] == {"own": 12}
        before, after = open_checkpoint(one), open_checkpoint(out)
        rows = report["rows"]["after"]
        assert rows == (12 if tokenizer.name == "two" else 16)
        for name in before.tensors:
            wanted = before.read(name)
            assert torch.equal(after.read(name), wanted[:rows] if name in (EMBEDDINGS, HEAD) else wanted)


def test_a_permuted_tokenizer_is_the_same_function(tmp_path: Path) -> None:
    """On texts: ids are others, and so are the places of the logits; ids in the configs follow."""
    tokens = [*WORDS[5:], *WORDS[:5]]
    one = llama(tmp_path / "one", words(WORDS))
    (one / "generation_config.json").write_text(json.dumps({"eos_token_id": 1, "suppress_tokens": [2, 3]}))
    words(tokens).save_pretrained(tmp_path / "tokenizer")
    module = isomerge.transplant_tokenizer(one, tokenizer=tmp_path / "tokenizer")
    isomerge.transplant_tokenizer(one, tokenizer=tmp_path / "tokenizer", out=tmp_path / "out")
    text = "c a b j i h d"
    given = [torch.tensor([words(order)(text)["input_ids"]]) for order in (WORDS, tokens)]
    assert not torch.equal(*given)
    with torch.no_grad():
        old = tf.AutoModelForCausalLM.from_pretrained(one, dtype=torch.float64)(given[0]).logits
        new = module(given[1]).logits
    places = [tokens.index(word) for word in WORDS]
    assert torch.equal(new[..., places], old)
    assert json.loads((tmp_path / "out/config.json").read_text())["eos_token_id"] == tokens.index("</s>")
    generation = json.loads((tmp_path / "out/generation_config.json").read_text())
    assert generation == {"eos_token_id": tokens.index("</s>"), "suppress_tokens": [tokens.index(w) for w in "ab"]}


@pytest.mark.parametrize("missing", ["omp", "nearest", "subword", "mean", "zero"])
def test_tokens_that_the_model_lacks(missing: str, tmp_path: Path) -> None:
    """Planted: the donor's vectors, of another width, are sums of those that both know; omp finds them."""
    one = llama(tmp_path / "one", words(WORDS))
    donor = llama(tmp_path / "donor", words([*WORDS, "x", "y"]), seed=1, hidden_size=32)
    held = open_checkpoint(donor)
    stored = {name: held.read(name) for name in held.tensors}
    sums = {12: {4: 2.0, 7: -0.5}, 13: {3: 1.0, 9: 3.0}}
    for name in (EMBEDDINGS, HEAD):
        for row, terms in sums.items():
            stored[name][row] = torch.stack([c * stored[name][at] for at, c in terms.items()]).sum(0)
    from safetensors.torch import save_file

    save_file(stored, donor / "model.safetensors", metadata={"format": "pt"})
    report = isomerge.transplant_tokenizer(
        one, tokenizer=donor, missing=missing, neighbours=5, out=tmp_path / "out"
    )
    before, after = open_checkpoint(one), open_checkpoint(tmp_path / "out")
    how = "mean" if missing == "subword" else missing  # words have no pieces
    assert report["filled"] == {"own": 12, how: 2}
    assert after.config["vocab_size"] == 14
    for name in (EMBEDDINGS, HEAD):
        old, new = before.read(name), after.read(name)
        assert torch.equal(new[:12], old)
        wanted = {
            "omp": torch.stack([sum(c * old[at] for at, c in terms.items()) for terms in sums.values()]),  # pyright: ignore[reportArgumentType, reportCallIssue]
            "mean": old.mean(0).expand(2, -1),
            "zero": torch.zeros(2, 12),
        }
        if how in wanted:
            assert float((new[12:] - wanted[how]).abs().max()) < 1e-9
        else:
            assert float(new[12:].abs().max()) <= float(old.abs().max())


def byte_pairs(merges: list[tuple[str, str]], letters: str) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer, whose spaces are Ġ."""
    vocab = {token: k for k, token in enumerate(["<|end|>", *letters, *("".join(m) for m in merges)])}
    made = Tokenizer(models.BPE(vocab, merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken("<|end|>", special=True)])
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|end|>")


def pieces() -> PreTrainedTokenizerFast:
    """A tokenizer of pieces, whose spaces are ▁."""
    vocab = {token: k for k, token in enumerate(["<unk>", "</s>", "▁a", "b", "▁ab", "<0x0A>", "cab"])}
    made = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    made.add_special_tokens([AddedToken("</s>", special=True), AddedToken("<unk>", special=True)])
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>", eos_token="</s>")


def test_tokens_are_the_same_by_what_they_spell_and_mark() -> None:
    """Spaces and bytes are written in two ways; ends of texts have two names; new words are made of pieces."""
    own = byte_pairs([("Ġ", "a"), ("Ġa", "b")], "abcĠĊ")
    assert spelled(own)["Ġab"] == b" ab"
    assert spelled(own)["Ċ"] == spelled(pieces())["<0x0A>"] == b"\n"
    same = same_tokens(pieces(), own)
    assert same == {"b": "b", "▁a": "Ġa", "▁ab": "Ġab", "<0x0A>": "Ċ", "</s>": "<|end|>"}
    made = pieces_of(pieces(), {"cab": 6}, own, len(own))
    assert made == {"cab": [own.get_vocab()[letter] for letter in "cab"]}


def test_subwords_by_the_models_own_tokenizer(tmp_path: Path) -> None:
    """Without weights beside the tokenizer, new tokens are means of pieces."""
    own = byte_pairs([("Ġ", "a"), ("Ġa", "b")], "abcĠĊ")
    one = llama(tmp_path / "one", own)
    pieces().save_pretrained(tmp_path / "tokenizer")
    report = isomerge.transplant_tokenizer(
        one, tokenizer=tmp_path / "tokenizer", pad_to_multiple_of=8, out=tmp_path / "out"
    )
    assert report["notes"] == []
    assert (report["missing"], report["filled"], report["rows"]["after"]) == (
        "subword",
        {"own": 5, "mean": 1, "subword": 1},
        8,
    )
    old, new = (open_checkpoint(folder).read(EMBEDDINGS) for folder in (one, tmp_path / "out"))
    ids = own.get_vocab()
    assert torch.equal(new[pieces().get_vocab()["▁ab"]], old[ids["Ġab"]])
    assert float((new[6] - old[[ids[letter] for letter in "cab"]].mean(0)).abs().max()) < 1e-12
    assert json.loads((tmp_path / "out/config.json").read_text())["eos_token_id"] == 1


def test_in_a_recipe(tmp_path: Path) -> None:
    """What a model lacks is made of its own vectors, and not copied from another basis."""
    one = llama(tmp_path / "one", words(WORDS))
    two = llama(tmp_path / "two", words([*WORDS, "x"]), seed=1)
    (left, right), vocabulary = with_vocabulary(
        [open_checkpoint(one), open_checkpoint(two)], source="union", missing="omp"
    )
    assert vocabulary.counts == [{"own": 12, "omp": 1}, {"own": 13}]
    row, theirs = left.read(EMBEDDINGS)[12], right.read(EMBEDDINGS)
    mine = open_checkpoint(one).read(EMBEDDINGS)
    shared, found = matching_pursuit(theirs[12:], theirs[:12], 64)
    assert torch.allclose(row, summed(mine, shared, found)[0], atol=1e-12)
    recipe = {
        "models": [{"model": str(one)}, {"model": str(two)}], "merge_method": "linear", "parameters": {"weight": 1},
        "tokenizer": {"source": "union", "missing": "omp", "neighbours": 3},
    }  # fmt: skip
    (tmp_path / "recipe.yml").write_text(json.dumps(recipe))
    job = request_of_recipe(tmp_path / "recipe.yml")
    assert job.tokenizer is not None
    assert _tokenizer(job.tokenizer, {})["tokenizer"] == recipe["tokenizer"]
    shared, found = matching_pursuit(theirs[12:], theirs[:12], 3)
    assert torch.allclose(opened(job)[0].read(EMBEDDINGS)[12], summed(mine, shared, found)[0], atol=1e-12)


def test_neighbours_that_nothing_sums_are_noted(tmp_path: Path) -> None:
    """Where tokens are made of pieces."""
    one = llama(tmp_path / "one", words(WORDS))
    report = isomerge.transplant_tokenizer(one, tokenizer=one, missing="mean", neighbours=3, out=tmp_path / "out")
    assert [note for note in report["notes"] if note.startswith("--neighbours is not used")]


def test_refused_in_one_sentence(tmp_path: Path) -> None:
    """Nothing is written."""
    one = llama(tmp_path / "one", words(WORDS))
    words(WORDS).save_pretrained(tmp_path / "tokenizer")
    for options, said in (
        ({"missing": "omp"}, "has no weights: name a model"),
        ({"missing": "copy"}, r"missing.*copy.*: choose from omp"),
        ({"pad_to_multiple_of": 0}, "no number of rows to pad to"),
    ):
        with pytest.raises(IsomergeError, match=said):
            isomerge.transplant_tokenizer(one, tokenizer=tmp_path / "tokenizer", out=tmp_path / "out", **options)
    (tmp_path / "empty").mkdir()
    with pytest.raises(IsomergeError, match=r"has no tokenizer"):
        isomerge.transplant_tokenizer(one, tokenizer=tmp_path / "empty", out=tmp_path / "out")
    other = llama(
        tmp_path / "other",
        words(["[UNK]x", "</s>x"]).__class__(tokenizer_object=Tokenizer(models.WordLevel({"q": 0}, unk_token="q"))),
    )
    with pytest.raises(IsomergeError, match=r"share no token"):
        isomerge.transplant_tokenizer(one, tokenizer=other, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
