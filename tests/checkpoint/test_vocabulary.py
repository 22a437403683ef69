"""Vocabularies: rows by token against a dictionary of rows, and texts against the models' own tokenizers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from depth import more
from isomerge import evaluate, merge, report
from isomerge.checkpoint.opening import open_checkpoint
from isomerge.checkpoint.reader import Checkpoint
from isomerge.config.config_parts import counts
from isomerge.errors import IsomergeError
from isomerge.merging.merge_request import request_of_models
from isomerge.merging.opened_models import by_token as decided
from isomerge.merging.opened_models import opened
from isomerge.models.compatible import check_compatible
from isomerge.models.recognised import recognise
from isomerge.models.references import open_model_ref
from isomerge.models.vocabulary_views import with_vocabulary
from isomerge.observe.live.modules import materialise
from isomerge.observe.stats.statistics import weights_digest
from isomerge.options.unused import notes, noting
from isomerge.run.writing_run import run_key
from isomerge.solve.match_inputs import inputs_key, open_given
from isomerge.solve.match_options import Matching
from raw_files import one_sentence, tree
from toys import randomise, relative, save_toy

SMALL = {
    "hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8,
    "num_key_value_heads": 1, "head_dim": 6, "max_position_embeddings": 16, "tie_word_embeddings": False,
}  # fmt: skip
TABLES = ("model.embed_tokens.weight", "lm_head.weight")
ONE = ["[UNK]", "a", "b", "c", "d"]
TWO = ["[UNK]", "c", "a", "e", "f"]


def words(tokens: Sequence[str], added: Sequence[str] = ()) -> PreTrainedTokenizerFast:
    """A tokenizer of single words."""
    found = Tokenizer(models.WordLevel({word: k for k, word in enumerate(tokens)}, unk_token="[UNK]"))
    found.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    for token in added:
        found.add_tokens([AddedToken(token, special=True)])
    return PreTrainedTokenizerFast(tokenizer_object=found, unk_token="[UNK]")


def pairs(merges: Sequence[tuple[str, str]], letters: str = "abcd") -> PreTrainedTokenizerFast:
    """A byte-pair tokenizer: letters, then what the merges make."""
    vocab = {token: k for k, token in enumerate([*letters, *("".join(m) for m in merges)])}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE(vocab, list(merges))))


def llama(
    folder: Path,
    tokenizer: Any,
    *,
    rows: int | None = None,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
    **kw: Any,
) -> Checkpoint:
    """A small Llama with a tokenizer."""
    config = tf.LlamaConfig(
        **{**SMALL, "vocab_size": rows or len(tokenizer), "bos_token_id": 1, "eos_token_id": 2, **kw}
    )
    model: Any = tf.LlamaForCausalLM(config)
    model.to(dtype)
    randomise(model, seed)
    model.tie_weights()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return open_checkpoint(folder)


def by_token(model: Checkpoint, table: str) -> dict[str, torch.Tensor]:
    """The rows of a model by their tokens, through its own files."""
    return {t: model.read(table)[k] for t, k in AutoTokenizer.from_pretrained(model.folder).get_vocab().items()}


def pair(tmp_path: Path) -> tuple[Checkpoint, Checkpoint]:
    """Two models that share three words."""
    return llama(tmp_path / "one", words(ONE)), llama(tmp_path / "two", words(TWO), seed=1)


def test_union(tmp_path: Path) -> None:
    """The first model's ids stay; every token has its own model's row, and missing ones the only owner's."""
    one, two = pair(tmp_path)
    (left, right), vocabulary = with_vocabulary([one, two], source="union")
    assert list(vocabulary.tokens) == [*ONE, "e", "f"]
    assert vocabulary.size == 7
    assert [vocabulary.filled(k) for k in (0, 1)] == [2, 2]
    for table in TABLES:
        mine, theirs = by_token(one, table), by_token(two, table)
        for token, at in vocabulary.tokens.items():
            assert torch.equal(left.read(table)[at], (theirs | mine)[token])
            assert torch.equal(right.read(table)[at], (mine | theirs)[token])
    assert torch.equal(left.read("model.norm.weight"), one.read("model.norm.weight"))
    assert [m.config["vocab_size"] for m in (left, right)] == [7, 7]
    check_compatible(recognise(left), [recognise(right)])


@torch.no_grad()
@pytest.mark.parametrize("source", ["base", "first", "two", "union"])
def test_written_models_compute_the_same(source: str, tmp_path: Path) -> None:
    """Texts of tokens that a model has give its logits, in its own tokens' order, by the written tokenizer."""
    one, two = pair(tmp_path)
    views, vocabulary = with_vocabulary([one, two], source=str(two.folder) if source == "two" else source, base=1)
    for k, (model, view) in enumerate(zip((one, two), views, strict=True)):
        out = materialise(view, tmp_path / f"out{k}")
        tokenizer, before = (AutoTokenizer.from_pretrained(folder) for folder in (out, model.folder))
        assert tokenizer.get_vocab() == vocabulary.tokens
        old, new = (
            tf.LlamaForCausalLM.from_pretrained(folder, dtype=torch.float64)(
                torch.tensor([t("c a [UNK] a")["input_ids"]])
            ).logits
            for folder, t in ((model.folder, before), (out, tokenizer))
        )
        both = sorted(before.get_vocab().keys() & tokenizer.get_vocab().keys())
        assert {"c", "a", "[UNK]"} <= set(both)
        columns = [[t.get_vocab()[token] for token in both] for t in (before, tokenizer)]
        assert relative(new[..., columns[1]], old[..., columns[0]]) <= 1e-5


def test_data_go_through_the_view_s_own_tokenizer(tmp_path: Path) -> None:
    """Where the anchor is a view in the other model's vocabulary, so are its texts; what tells a run from another
    knows it."""
    one, two = pair(tmp_path)
    text = tmp_path / "x.txt"
    text.write_text("c a e f")
    matching, found = Matching(data=str(text)), {}
    for source in ("first", "base", "union"):
        views, vocabulary = with_vocabulary([one, two], source=source, base=1)
        anchor = recognise(views[0])
        ids = open_given(str(text), anchor, matching).tensors["input_ids"][0].tolist()
        assert ids == [vocabulary.tokens.get(token, 0) for token in ("c", "a", "e", "f")]
        found[source] = repr(inputs_key(matching, anchor))
    assert len(set(found.values())) == 3
    held = ({name: one.read(name) for name in one.tensors}, one.config)
    with pytest.raises(IsomergeError) as error:
        merge([held, one], data=text, out=tmp_path / "out")
    one_sentence(error.value, "in memory has no tokenizer (tokenizer.json)")


def test_source_bases_stay_in_their_vocabulary(tmp_path: Path) -> None:
    """Their rows would be subtracted from those of other tokens: that is refused, but where nothing moves."""
    one, two = pair(tmp_path)
    job = request_of_models([one, two], method="task_arithmetic", base_model=one, source_bases=[one, two])
    job = replace(job, tokenizer={"source": "base"}, source_bases=(None, two))
    with pytest.raises(IsomergeError) as error:
        opened(job)
    one_sentence(error.value, "two: another vocabulary moves the rows", "leave --source-base out")
    assert opened(replace(job, models=(one, one)))[0] is one


def llava(folder: Path, tokenizer: Any, seed: int) -> Checkpoint:
    """A small LLaVA with a tokenizer; its image token is the first."""
    tower = {
        "hidden_size": 12,
        "intermediate_size": 8,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": 4,
        "patch_size": 2,
    }
    text = {**SMALL, "vocab_size": len(tokenizer), "bos_token_id": 1, "model_type": "llama"}
    config = tf.LlavaConfig(
        text_config=text, vision_config=tower, image_token_index=tokenizer.get_vocab()["<image>"]
    )
    model: Any = tf.LlavaForConditionalGeneration(config).double()
    randomise(model, seed)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return open_checkpoint(folder)


@torch.no_grad()
def test_a_model_of_texts_and_images(tmp_path: Path) -> None:
    """The number of tokens and their ids are those of its part, the image's token that of the whole."""
    one = llava(tmp_path / "one", words([*ONE, "<image>"]), 0)
    two = llava(tmp_path / "two", words(["<image>", *TWO, "g", "h"]), 1)
    views, vocabulary = with_vocabulary([one, two], source="union")
    for model, view in zip((one, two), views, strict=True):
        assert view.config["text_config"]["vocab_size"] == vocabulary.size == 10
        assert "vocab_size" not in view.config
        assert view.config["image_token_index"] == vocabulary.tokens["<image>"]
        own = AutoTokenizer.from_pretrained(model.folder).convert_ids_to_tokens(1)
        assert view.config["text_config"]["bos_token_id"] == vocabulary.tokens[own]
        before, after = (
            tf.AutoModelForImageTextToText.from_pretrained(f, dtype=torch.float64)
            for f in (model.folder, materialise(view, tmp_path / f"{model.folder.name}-out"))
        )
        ids = [AutoTokenizer.from_pretrained(model.folder).get_vocab()[word] for word in ("a", "c")]
        logits = [
            m(input_ids=torch.tensor([i])).logits
            for m, i in ((before, ids), (after, [vocabulary.tokens[w] for w in ("a", "c")]))
        ]
        assert torch.equal(logits[0][..., ids], logits[1][..., [vocabulary.tokens[w] for w in ("a", "c")]])
    check_compatible(recognise(views[0]), [recognise(views[1])])


@pytest.mark.parametrize(
    ("config", "parts"),
    [
        ({"vocab_size": 9}, ["vocab_size"]),
        ({"n_words": 9}, ["n_words"]),
        ({"vocab_size": 9, "vlm": {"vocab_size": 9, "text": {"vocab_size": 9}}}, ["vlm.text.vocab_size", "vlm.vocab_size", "vocab_size"]),
        ({"vocab_size": 7, "vlm": {"text": {"vocab_size": 9}}, "qformer": {"vocab_size": 9}}, ["vlm.text.vocab_size"]),
        ({"decoder": {"vocab_size": 9}, "vlm": {"text": {"vocab_size": 9}}}, ["decoder.vocab_size", "vlm.text.vocab_size"]),
        ({"vlm": {"text": {}}, "qformer": {"vocab_size": 9}}, ["vlm.text.vocab_size"]),
    ],
)  # fmt: skip
def test_where_a_config_counts_its_tokens(config: dict[str, Any], parts: list[str]) -> None:
    """Where another number makes other shapes, and where the wholes around that part repeat it."""

    def bound(given: Any) -> int:
        text = given.get("vlm", {}).get("text", given)
        return text.get("vocab_size", text.get("n_words", 9))

    assert sorted(".".join(path) for path in counts(config, 9, bound)) == parts


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("encoder-decoder", "encoder.embeddings.word_embeddings.weight is a second table of tokens"),
        ("cpmant", "the embeddings of cpmant have other rows"),
        *more(("gemma3n_text", "per_layer.weight is a second"), ("deepseek_v4", "tid2eid is a second"), ("mllama", "other rows")),
    ],
)  # fmt: skip
def test_other_tables_of_tokens(name: str, says: str, tmp_path: Path) -> None:
    """Their rows would stay where they are while the ids of their tokens change."""
    model = open_checkpoint(save_toy(name, tmp_path / "m"))
    words([str(k) for k in range(67)]).save_pretrained(model.folder)
    assert with_vocabulary([model, model])[0][0] is model
    with pytest.raises(IsomergeError) as error:
        with_vocabulary([model, model], pad_to_multiple_of=4)
    one_sentence(error.value, says, "give models of one vocabulary")


def test_one_models_vocabulary(tmp_path: Path) -> None:
    """The keeper is returned as it is; special ids follow their tokens, and where these are gone, the keeper."""
    one, two = pair(tmp_path)
    (tmp_path / "one" / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 2, 3], "top_k": 3}))
    (left, right), vocabulary = with_vocabulary([one, two], source=two.ref)
    assert right is two
    assert vocabulary.owner == 1
    # one's a (1) is 2 of the output; one's b (2) is gone, so two's own eos stands
    assert (left.config["bos_token_id"], left.config["eos_token_id"]) == (2, 2)
    out = materialise(left, tmp_path / "out")
    assert json.loads((out / "generation_config.json").read_text()) == {"eos_token_id": [2, 1], "top_k": 3}
    assert (out / "tokenizer.json").read_bytes() == (two.folder / "tokenizer.json").read_bytes()


def test_equal_tokenizers(tmp_path: Path) -> None:
    """Nothing to do: the models' own places in their own files, byte for byte."""
    one, two = llama(tmp_path / "one", words(ONE), rows=8), llama(tmp_path / "two", words(ONE), rows=8, seed=1)
    for source in ("union", "base", "first", one.ref):
        views, vocabulary = with_vocabulary([one, two], source=source)
        assert views[0] is one
        assert views[1].tensors == two.tensors
        assert not views[1].recipes
        assert (vocabulary.size, vocabulary.filled(0), vocabulary.filled(1)) == (8, 0, 0)
    assert tree(materialise(views[1], tmp_path / "a")) == tree(materialise(two, tmp_path / "b"))


def test_rows_beyond_the_tokens(tmp_path: Path) -> None:
    """Qwen has more rows than tokens: its own rows stay, and a model with fewer gets the keeper's."""
    one, two = llama(tmp_path / "one", words(ONE), rows=9), llama(tmp_path / "two", words(ONE), rows=6, seed=1)
    (left, right), vocabulary = with_vocabulary([one, two], source="base")
    assert left is one
    assert vocabulary.size == 9
    for table in TABLES:
        assert torch.equal(right.read(table), torch.cat([two.read(table), one.read(table)[6:]]))
    (_, smaller), vocabulary = with_vocabulary([one, two], source=two.ref)
    assert smaller is two
    assert vocabulary.size == 6
    # a union that fits into the padding takes its first rows and leaves the rest
    three = llama(tmp_path / "three", words([*ONE, "e"]), seed=2)
    (left, right), vocabulary = with_vocabulary([one, three], source="union")
    assert (vocabulary.size, vocabulary.tokens["e"]) == (9, 5)
    for table in TABLES:
        assert torch.equal(left.read(table)[5], three.read(table)[5])
        assert torch.equal(left.read(table)[6:], one.read(table)[6:])
        assert torch.equal(right.read(table), torch.cat([three.read(table), one.read(table)[6:]]))


def test_tokens_beyond_the_rows(tmp_path: Path) -> None:
    """A tokenizer with more tokens than the embedding has rows: the model stays, and others take no such tokens."""
    one, two = llama(tmp_path / "one", words(ONE), rows=4), llama(tmp_path / "two", words(TWO), rows=4, seed=1)
    (left, _), vocabulary = with_vocabulary([one, two], source="base")
    assert left is one
    assert vocabulary.size == 4
    _, vocabulary = with_vocabulary([one, two], source="union")
    assert set(vocabulary.tokens) == {*ONE, "e"}


def test_fill_rules(tmp_path: Path) -> None:
    """A token that two others have: the base's row if it has it, else the mean of all owners."""
    every = [llama(tmp_path / f"{k}", words(w), seed=k) for k, w in enumerate((ONE, [*ONE, "x"], [*TWO, "x"], TWO))]
    for base, table in ((None, TABLES[0]), (0, TABLES[1]), (2, TABLES[0])):
        views, vocabulary = with_vocabulary(every, source="union", base=base)
        x, e = vocabulary.tokens["x"], vocabulary.tokens["e"]
        rows = [m.read(table)[5] for m in every[1:3]]
        wanted = rows[1] if base == 2 else (rows[0] + rows[1]) / 2
        assert torch.allclose(views[0].read(table)[x], wanted, rtol=1e-14)
        assert torch.allclose(views[3].read(table)[x], wanted, rtol=1e-14)
        assert torch.equal(views[1].read(table)[x], rows[0])
        owners = [m.read(table)[3] for m in every[2:]]
        wanted = owners[0] if base == 2 else (owners[0] + owners[1]) / 2
        assert torch.allclose(views[0].read(table)[e], wanted, rtol=1e-14)


def test_token_rules(tmp_path: Path) -> None:
    """Single tokens from named models, other tokens, rows, zeros; force overrules; unknown tokens are added."""
    one, two = pair(tmp_path)
    tokens = {
        "a": {"source": two.ref, "force": True},
        "c": {"source": two.ref},
        "<new>": {"source": {"kind": "model_token", "model": two.ref, "token": "f"}},
        "<row>": {"source": {"kind": "model_token", "model": one.ref, "token_id": 3}},
        "<zero>": {"source": {"kind": "zero"}},
    }
    (left, right), vocabulary = with_vocabulary([one, two], source="base", tokens=tokens)
    ids = vocabulary.tokens
    assert list(ids) == [*ONE, "<new>", "<row>", "<zero>"]
    for table in TABLES:
        mine, theirs = by_token(one, table), by_token(two, table)
        for view in (left, right):
            x = view.read(table)
            assert torch.equal(x[ids["a"]], theirs["a"])
            assert torch.equal(x[ids["<new>"]], theirs["f"])
            assert torch.equal(x[ids["<row>"]], mine["c"])
            assert not x[ids["<zero>"]].any()
        assert torch.equal(left.read(table)[ids["c"]], mine["c"])
    out = materialise(left, tmp_path / "out")
    assert AutoTokenizer.from_pretrained(out)("a<new> c")["input_ids"] == [1, ids["<new>"], 3]


def test_ids_stay_where_rows_come_from_elsewhere(tmp_path: Path) -> None:
    """A special token whose row a rule gives keeps its id; so does one whose row a rule gives to another token as
    well."""
    one, two = pair(tmp_path)
    tokens = {
        "b": {"source": {"kind": "zero"}, "force": True},  # one's end
        "c": {
            "source": {"kind": "model_token", "model": two.ref, "token": "a"},
            "force": True,
        },  # two's end, in its place
    }
    (left, right), _ = with_vocabulary([one, two], source=two.ref, tokens={"c": tokens["c"]})
    assert right.config["eos_token_id"] == 2
    (left, right), vocabulary = with_vocabulary([one, two], source="union", tokens=tokens)
    assert left.config["eos_token_id"] == vocabulary.tokens["b"]
    assert right.config["eos_token_id"] == vocabulary.tokens["a"]


def test_padding(tmp_path: Path) -> None:
    """New rows are the mean of the model's others; nothing is cut."""
    one, two = pair(tmp_path)
    (left, right), vocabulary = with_vocabulary([one, two], source="union", pad_to_multiple_of=4)
    assert (len(vocabulary.tokens), vocabulary.size) == (7, 8)
    for view in (left, right):
        x = view.read(TABLES[0])
        assert torch.allclose(x[7], x[:7].mean(0), rtol=1e-12)
    wide = llama(tmp_path / "wide", words(ONE), rows=9)
    _, vocabulary = with_vocabulary([wide, one], source="base", pad_to_multiple_of=4)
    assert vocabulary.size == 12


def test_heads_and_biases(tmp_path: Path) -> None:
    """Every axis that the spec calls vocab: BERT's output bias as well, and what is tied stays tied."""
    every = []
    for k, tokens in enumerate((ONE, TWO)):
        config = tf.BertConfig(
            vocab_size=5, hidden_size=12, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
        )
        model = tf.BertForMaskedLM(config).double()
        randomise(model, k)
        model.save_pretrained(tmp_path / f"{k}")
        words(tokens).save_pretrained(tmp_path / f"{k}")
        every.append(open_checkpoint(tmp_path / f"{k}"))
    (left, _), vocabulary = with_vocabulary(every, source="union")
    bias = left.read("cls.predictions.bias")
    assert torch.equal(
        bias, torch.cat([every[0].read("cls.predictions.bias"), every[1].read("cls.predictions.bias")[3:]])
    )
    assert set(left.tensors) == set(every[0].tensors)
    assert tf.BertForMaskedLM.from_pretrained(materialise(left, tmp_path / "out")).config.vocab_size == 7
    assert vocabulary.size == 7


def test_dtypes(tmp_path: Path) -> None:
    """Every view keeps its model's dtype; means are taken in float32 and rounded once."""
    kinds = (torch.bfloat16, torch.float32, torch.bfloat16)
    every = [
        llama(tmp_path / f"{k}", words(w), seed=k, dtype=d)
        for k, (w, d) in enumerate(zip((ONE, [*ONE, "x"], [*ONE, "x"]), kinds, strict=True))
    ]
    views, _ = with_vocabulary(every)
    x = views[0].read(TABLES[0])
    assert x.dtype == torch.bfloat16
    rows = [m.read(TABLES[0])[5].float() for m in every[1:]]
    assert torch.equal(x[5], ((rows[0] + rows[1]) / 2).bfloat16())


def test_byte_pairs(tmp_path: Path) -> None:
    """A union of merges: the own come first, then the other's; the other's words are whole again."""
    one, two = pairs([("a", "b")]), pairs([("c", "d"), ("cd", "a"), ("a", "b"), ("x", "y")], "abcdxy")
    left, right = llama(tmp_path / "one", one), llama(tmp_path / "two", two, seed=1)
    (view, _), vocabulary = with_vocabulary([left, right])
    out = AutoTokenizer.from_pretrained(materialise(view, tmp_path / "out"))
    assert out.get_vocab() == vocabulary.tokens
    assert out.tokenize("abcda") == ["ab", "cda"]
    assert out.tokenize("xyab") == ["xy", "ab"]
    for text in ("ab", "abab", "ba"):
        assert out(text)["input_ids"] == one(text)["input_ids"]


def test_added_tokens(tmp_path: Path) -> None:
    """Special tokens of both stay special, and own ids stay also where ordinary tokens come after added ones."""
    one, two = words(ONE, ["<im_start>"]), words(TWO, ["<im_start>", "<tool>"])
    (view, _), vocabulary = with_vocabulary(
        [llama(tmp_path / "one", one), llama(tmp_path / "two", two, seed=1)], source="union"
    )
    assert vocabulary.tokens["<im_start>"] == 5
    out = AutoTokenizer.from_pretrained(materialise(view, tmp_path / "out"))
    assert out.get_vocab() == vocabulary.tokens
    assert set(out.get_vocab()) == {*ONE, *TWO, "<im_start>", "<tool>"}
    assert out.decode(out("<im_start> a <tool> e")["input_ids"], skip_special_tokens=True).split() == ["a", "e"]


def test_engine(tmp_path: Path) -> None:
    """Digests are those of the written form; keys follow what is decided."""
    one, two = pair(tmp_path)
    keys = []
    for tokens in (None, {"a": {"source": two.ref, "force": True}}):
        (left, _), _ = with_vocabulary([one, two], tokens=tokens)
        out = materialise(left, tmp_path / f"{len(keys)}")
        assert weights_digest(recognise(left)) == weights_digest(recognise(out))
        keys.append(left.identity())
        assert run_key("x", [recognise(left)]) != run_key("x", [recognise(one)])
    assert keys[0] != keys[1]


def test_refusals(tmp_path: Path) -> None:
    """One sentence each."""
    one, two = pair(tmp_path)
    bare = llama(tmp_path / "bare", words(ONE))
    for file in bare.folder.glob("tokenizer*"):
        file.unlink()
    wide = llama(tmp_path / "wide", words(TWO), hidden_size=16)
    for given, names in (
        ({"models": [one, bare]}, ["bare", "tokenizer.json"]),
        ({"models": [one, wide]}, ["lm_head.weight", "[5, 12]", "[5, 16]"]),
        ({"source": "nowhere"}, ["nowhere"]),
        ({"pad_to_multiple_of": 0}, ["pad_to_multiple_of"]),
        ({"pad_to_multiple_of": 3_000_000_000}, ["pad_to_multiple_of", "up to 65536"]),
        ({"tokens": {"a": {"source": "nobody"}}}, ["tokenizer.tokens.a", "nobody"]),
        ({"tokens": {"a": {"sauce": one.ref}}}, ["tokenizer.tokens.a"]),
        ({"tokens": {"a": {"source": one.ref, "force": "yes"}}}, ["force", "yes"]),
        ({"tokens": {"e": {"source": one.ref}}}, ["'e'"]),
        ({"tokens": {"a": {"source": {"kind": "random"}}}}, ["tokenizer.tokens.a"]),
        (
            {"tokens": {"a": {"source": {"kind": "model_token", "model": one.ref, "token_id": 5}}}},
            ["token_id", "5"],
        ),
    ):
        arguments = {"models": [one, two], "source": "union", **given}
        with pytest.raises(IsomergeError) as error:
            with_vocabulary(arguments.pop("models"), **arguments)
        one_sentence(error.value, *names)


def test_tables_that_are_computed_stay_as_they_are_computed(tmp_path: Path) -> None:
    """Embeddings that an adapter has saved in float32 are not rounded to the base's dtype on their way into another
    vocabulary; stored, they are."""
    one, two = llama(tmp_path / "one", words(ONE), dtype=torch.bfloat16), llama(tmp_path / "two", words(TWO))
    table = torch.randn(5, 12, generator=torch.Generator().manual_seed(4))
    (tmp_path / "lora").mkdir()
    key = "base_model.model.model.embed_tokens.modules_to_save.weight"
    save_file({key: table}, tmp_path / "lora/adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 1, "lora_alpha": 1, "modules_to_save": ["embed_tokens"]}
    (tmp_path / "lora/adapter_config.json").write_text(json.dumps(config))
    tuned = open_model_ref(f"{one.folder}+{tmp_path / 'lora'}")
    (view, _), vocabulary = with_vocabulary([tuned, two])
    rows = [vocabulary.tokens[token] for token in ONE]
    assert torch.equal(view.read(TABLES[0], exact=True)[rows], table)
    assert torch.equal(view.read(TABLES[0])[rows], table.bfloat16())


@pytest.mark.parametrize("source", [None, "two"])
def test_a_merge_of_several_vocabularies_is_measured(source: str | None, tmp_path: Path) -> None:
    """All models read the output's texts in its vocabulary, whichever that is."""
    one, two = pair(tmp_path)
    data, out = tmp_path / "texts.txt", tmp_path / "out"
    data.write_text("c a f e c\ne a c a\n")
    how: Any = {} if source is None else {"tokenizer_source": str(two.folder)}
    merge([one.folder, two.folder], out=out, align=False, **how)
    (measured,) = report(out, data=data, points=3).measured
    views, _ = with_vocabulary([open_checkpoint(out), one, two], source="first")
    folders = [materialise(view, tmp_path / f"view{k}") for k, view in enumerate(views[1:])]
    wanted = [evaluate([folder], data=data)["models"][0]["loss"] for folder in (*folders, out)]
    found = [*(end["loss"] for end in measured["lines"][0]["ends"]), measured["merged"]["loss"]]
    assert found == pytest.approx(wanted, rel=1e-5)


def test_equal_models_of_other_numbers_of_rows_are_told_so(tmp_path: Path) -> None:
    """Their tables were looked at in one vocabulary; those of one number of rows as they are."""
    one, padded = llama(tmp_path / "one", words(ONE), dtype=torch.float32), tmp_path / "padded"
    shutil.copytree(one.folder, padded)
    tensors = {name: one.read(name) for name in one.tensors}
    tensors |= {name: torch.cat([tensors[name], torch.ones(3, 12)]) for name in TABLES}
    save_file(tensors, padded / "model.safetensors")
    (padded / "config.json").write_text(json.dumps({**one.config, "vocab_size": 8}))
    said = "2 of them in the rows of the tokens that both have"
    for number, (second, told) in enumerate(((padded, True), (one.folder, False))):
        sentence = merge([one.folder, second], out=tmp_path / str(number), align=False)["verdict"]["sentence"]
        assert ("tensors are equal" in sentence, said in sentence) == (True, told)


TEMPLATE = "chat_template.jinja"


@pytest.mark.parametrize("how", ["decided", "union", "stacked"])
def test_the_most_frequent_chat_template_of_models_of_several_vocabularies(how: str, tmp_path: Path) -> None:
    """It is that of most models as they are named: the views of one vocabulary all have the files of one, so that
    looking at them finds the first one's alone."""
    one, two = pair(tmp_path)
    three = llama(tmp_path / "three", words(TWO), seed=2)
    for model, text in ((one, "{{ 1 }}"), (two, "{{ 2 }}"), (three, "{{ 2 }}")):
        (model.folder / TEMPLATE).write_text(text)
    refs = [str(model.folder) for model in (one, two, three)]
    job = replace(
        request_of_models(refs, tokenizer_source="union" if how == "union" else None), chat_template=("auto", "")
    )
    if how == "stacked":
        job = replace(job, models=(refs[0],), stacks=(tuple((ref, (0, 1)) for ref in refs),))
    views = opened(decided(job).request)
    assert views[0].companions()[TEMPLATE] == b"{{ 2 }}"
    (two.folder / TEMPLATE).unlink()
    (one.folder / TEMPLATE).unlink()
    assert opened(decided(job).request)[0].companions()[TEMPLATE] == b"{{ 2 }}"  # of those that have one


def test_chat_templates_that_are_not_written_are_told(tmp_path: Path) -> None:
    """In one sentence, where nothing says which is to be; not where the output has that of all that have one."""
    one, two = pair(tmp_path)
    (two.folder / TEMPLATE).write_text("{{ 2 }}")
    told_by = merge([one.folder, two.folder], out=tmp_path / "out", align=False)
    assert (
        sum(f"{two.folder} has a chat template, and the output has none" in text for text in told_by["notes"]) == 1
    )
    refs = [str(model.folder) for model in (one, two)]

    def told(job: Any) -> list[str]:
        tokens = decided(job)
        return tokens.template_notes(opened(tokens.request)[0])

    (one.folder / TEMPLATE).write_text("{{ 1 }}")
    assert "another one" in told(request_of_models(refs))[0]
    assert told(replace(request_of_models(refs), chat_template=("auto", ""))) == []
    (one.folder / TEMPLATE).write_text("{{ 2 }}")
    assert told(request_of_models(refs)) == []
    (one.folder / TEMPLATE).unlink()
    assert told(request_of_models(refs, tokenizer_source=str(two.folder))) == []  # whose files are written


def test_models_in_memory(tmp_path: Path) -> None:
    """They have no tokenizer, which is said; a chat template travels with them all the same."""
    one, _ = pair(tmp_path)
    held = ({name: one.read(name) for name in one.tensors}, one.config)
    for both in ([held, one], [one, held]):
        with pytest.raises(IsomergeError) as error:
            merge(both, tokenizer_source="union", out=tmp_path / "out")
        one_sentence(error.value, "in memory has no tokenizer", "tokenizer.json")
    job = replace(request_of_models([held, one]), chat_template=("{{ a }}", "{{ a }}"))
    first, second = opened(job)
    assert first.companions() == {"chat_template.jinja": b"{{ a }}"}
    assert torch.equal(first.read(TABLES[0]), one.read(TABLES[0]))
    assert second is one
    with pytest.raises(IsomergeError, match="dict is no model: give a folder"):
        merge([{}, one], tokenizer_source="union", out=tmp_path / "out")
    with pytest.raises(IsomergeError, match="float is no mapping"):
        merge([(1.0, one.config), one], tokenizer_source="union", out=tmp_path / "out")


def test_a_tokenizer_of_its_own(tmp_path: Path) -> None:
    """A folder that is none of the models may give the vocabulary."""
    one, two = pair(tmp_path)
    words(["f", "a", "zz", "[UNK]"]).save_pretrained(tmp_path / "third")
    (left, _), vocabulary = with_vocabulary([one, two], source=str(tmp_path / "third"))
    x, mine, theirs = left.read(TABLES[0]), by_token(one, TABLES[0]), by_token(two, TABLES[0])
    assert vocabulary.tokens == {"f": 0, "a": 1, "zz": 2, "[UNK]": 3}
    assert torch.equal(
        x, torch.stack([theirs["f"], mine["a"], torch.zeros(12, dtype=torch.float64), mine["[UNK]"]])
    )


def test_tokenizers_that_cannot_grow(tmp_path: Path) -> None:
    """Python tokenizers, and ids with gaps, into which transformers would put new tokens; one vocabulary is still
    right."""
    file = tmp_path / "vocab.txt"
    file.write_text("\n".join(["<cls>", "<pad>", "<eos>", "<unk>", "a", "<mask>"]))
    gaps = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1, "b": 4, "c": 5}, unk_token="[UNK]"))
    gaps = PreTrainedTokenizerFast(tokenizer_object=gaps, unk_token="[UNK]")
    cases = [(tf.EsmTokenizer(str(file)), "cannot be extended"), (gaps, "does not keep the ids")]
    tokens = {"new": {"source": {"kind": "zero"}}, "newer": {"source": {"kind": "zero"}}}
    for k, (tokenizer, words_) in enumerate(cases):
        own = llama(tmp_path / f"own{k}", tokenizer, rows=6)
        other = llama(tmp_path / f"other{k}", tokenizer, rows=6, seed=1)
        with_vocabulary([own, other], source="base")
        with pytest.raises(IsomergeError) as error:
            with_vocabulary([own, other], source="base", tokens=tokens)
        one_sentence(error.value, own.ref, words_)


def test_slices_of_two_vocabularies(tmp_path: Path) -> None:
    """Tokens belong to whole models: a stack of layers of both has the union, and tables of the first and the last
    slice."""
    one = llama(tmp_path / "one", words(ONE), num_hidden_layers=2)
    two = llama(tmp_path / "two", words(TWO), num_hidden_layers=2, seed=1)
    layers = "slices:\n" + "".join(
        f"- sources: [{{model: {m.folder}, layer_range: [{k}, {k + 1}]}}]\n" for k, m in enumerate((one, two))
    )
    recipe = tmp_path / "r.yml"
    for source, expected in (("union", {*ONE, *TWO}), (str(two.folder), {*TWO})):
        recipe.write_text(f"{layers}merge_method: passthrough\ntokenizer_source: {source}\n")
        merge(recipe, out=tmp_path / "out", overwrite=True)
        out = open_checkpoint(tmp_path / "out")
        embeddings, heads = by_token(out, TABLES[0]), by_token(out, TABLES[1])
        assert set(embeddings) == expected
        for token in expected & {*ONE}:
            assert torch.equal(embeddings[token], by_token(one, TABLES[0])[token])
        for token in expected & {*TWO}:
            assert torch.equal(heads[token], by_token(two, TABLES[1])[token])
        for k, model in enumerate((one, two)):
            name = f"model.layers.{k}.mlp.up_proj.weight"
            assert torch.equal(out.read(name), model.read(name))


@pytest.mark.parametrize("listed", [True, False])
def test_a_base_of_a_method_that_knows_none_fills_gaps(listed: bool, tmp_path: Path) -> None:
    """A token that a model lacks gets the base's row, not the mean of all that have it, as in mergekit."""
    one, two = pair(tmp_path)
    base = llama(tmp_path / "base", words(ONE), seed=7)
    models = [str(x.folder) for x in ((one, base, two) if listed else (one, two))]
    job = request_of_models(models, tokenizer_source="union", base_model=str(base.folder))
    views = opened(job)
    theirs = next(view for view in views if view.folder == two.folder)
    rows = theirs.read(TABLES[0])
    at = AutoTokenizer.from_pretrained(base.folder).get_vocab()["b"]
    assert "b" not in TWO
    assert torch.equal(rows[at], base.read(TABLES[0])[at])
    assert not torch.equal(rows[at], one.read(TABLES[0])[at])


def test_models_of_one_vocabulary_need_no_source(tmp_path: Path) -> None:
    """It is told that the option does nothing."""
    models = [str(llama(tmp_path / name, words(ONE), seed=seed).folder) for seed, name in enumerate("ab")]
    with noting():
        opened(request_of_models(models, tokenizer_source="union"))
        assert notes() == ["--tokenizer-source is not used: the models have one vocabulary"]
    with noting():
        opened(request_of_models([str(x.folder) for x in pair(tmp_path)], tokenizer_source="union"))
        assert notes() == []


@pytest.mark.parametrize("source", ["union", "elsewhere"])
def test_ids_far_beyond_the_tokens(source: str, tmp_path: Path) -> None:
    """They would make rows by the million, before anything is written; a gap that the table has is no fault."""
    one = llama(tmp_path / "one", words(ONE), rows=9)
    gap = json.loads((one.folder / "tokenizer.json").read_text())
    gap["model"]["vocab"]["far"] = 10_000_000
    far = tmp_path / "far" if source == "elsewhere" else one.folder
    far.mkdir(exist_ok=True)
    (far / "tokenizer.json").write_text(json.dumps(gap))
    with pytest.raises(IsomergeError) as error:
        with_vocabulary([one], source="union" if source == "union" else str(far))
    one_sentence(error.value, far, "6 tokens", "'far' the id 10000000", "65536 rows")
    gap["model"]["vocab"]["far"] = 8
    (far / "tokenizer.json").write_text(json.dumps(gap))
    assert with_vocabulary([one], source="union" if source == "union" else str(far))[1].size == 9
