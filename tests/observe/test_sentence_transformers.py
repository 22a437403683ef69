"""Folders of sentence-transformers: the modules behind the model travel with it, and the output computes with
them."""

from __future__ import annotations

import json
from pathlib import Path

import torch
import transformers as tf
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

import isomerge
from isomerge.evidence.law import random_alignment
from isomerge.models.recognised import recognise
from toy_settings import BODY_OF_THREE
from toys import randomise, relative

TEXTS = ["the cat sat on a mat", "two dogs bark"]
MODULES = ["Transformer", "Pooling", "Dense", "Normalize"]


def saved(folder: Path, seed: int = 0) -> Path:
    """A tiny embedding model: BERT, a mean over tokens, a dense layer to a quarter of the width, unit length."""
    model = tf.BertModel(tf.BertConfig(**{**BODY_OF_THREE, "num_hidden_layers": 1})).double()
    randomise(model, seed)
    model.save_pretrained(folder)
    places = ["", "1_Pooling", "2_Dense", "3_Normalize"]
    kinds = [f"sentence_transformers.models.{kind}" for kind in MODULES]
    listed = [
        {"idx": k, "name": str(k), "path": p, "type": t} for k, (p, t) in enumerate(zip(places, kinds, strict=True))
    ]
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 32, "do_lower_case": false}')
    (folder / "config_sentence_transformers.json").write_text('{"similarity_fn_name": "cosine"}')
    pooling = {"word_embedding_dimension": 48, "pooling_mode_mean_tokens": True}
    dense = {
        "in_features": 48,
        "out_features": 12,
        "bias": True,
        "activation_function": "torch.nn.modules.linear.Identity",
    }
    for place, config in (("1_Pooling", pooling), ("2_Dense", dense)):
        (folder / place).mkdir()
        (folder / place / "config.json").write_text(json.dumps(config))
    rng = torch.Generator().manual_seed(seed)
    weight, bias = (torch.randn(*shape, generator=rng, dtype=torch.float64) for shape in ((12, 48), (12,)))
    save_file({"linear.weight": weight, "linear.bias": bias}, folder / "2_Dense" / "model.safetensors")
    return folder


def embeddings(folder: Path) -> torch.Tensor:
    """What the modules of a folder compute, in the order of modules.json."""
    kinds = [module["type"].rpartition(".")[2] for module in json.loads((folder / "modules.json").read_text())]
    assert kinds == MODULES
    ids = torch.randint(1, 60, (3, 11), generator=torch.Generator().manual_seed(7))
    model = tf.BertModel.from_pretrained(folder, dtype=torch.float64).eval()
    dense = load_file(folder / "2_Dense" / "model.safetensors")
    assert json.loads((folder / "1_Pooling" / "config.json").read_text())["pooling_mode_mean_tokens"]
    with torch.no_grad():
        pooled = model(ids).last_hidden_state.mean(1)
    return torch.nn.functional.normalize(pooled @ dense["linear.weight"].T + dense["linear.bias"], dim=-1)


def files(folder: Path) -> dict[str, bytes]:
    """All files of the modules behind the model, and what lists them."""
    names = [p for p in sorted(folder.glob("**/*")) if p.is_file() and (p.parent != folder or "sentence" in p.name)]
    return {str(p.relative_to(folder)): p.read_bytes() for p in [*names, folder / "modules.json"]}


def test_the_modules_travel(tmp_path: Path) -> None:
    """Byte by byte, from the first model; and a twin's merge embeds as the model does, dense layer included."""
    a = saved(tmp_path / "a")
    model = recognise(a)
    local = set(model.spec.spaces) - model.spec.residual_names
    g = random_alignment(model.spec, model.blocks, torch.Generator().manual_seed(2), local)
    isomerge.apply(g, a, out=tmp_path / "twin")
    assert relative(embeddings(tmp_path / "twin"), embeddings(a)) < 1e-9
    isomerge.merge([a, tmp_path / "twin"], out=tmp_path / "merged")
    for out in (tmp_path / "twin", tmp_path / "merged"):
        assert files(out) == files(a)
        assert {"1_Pooling/config.json", "2_Dense/config.json", "2_Dense/model.safetensors"} <= files(out).keys()
    assert relative(embeddings(tmp_path / "merged"), embeddings(a)) < 1e-9
    isomerge.merge([a, saved(tmp_path / "b", 5)], out=tmp_path / "other")
    assert relative(embeddings(tmp_path / "other"), embeddings(a)) > 0.01
    assert files(tmp_path / "other") == files(a)


def library_saved(folder: Path, seed: int = 0) -> Path:
    """A tiny embedding model, saved by the library itself with a tokenizer of a few words."""
    made = folder / "transformer"
    model = tf.BertModel(tf.BertConfig(**{**BODY_OF_THREE, "num_hidden_layers": 1}))
    randomise(model, seed)
    model.save_pretrained(made)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *TEXTS[0].split(), *TEXTS[1].split()]
    tokenizer = Tokenizer(WordLevel({word: k for k, word in enumerate(dict.fromkeys(words))}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    wrapped = tf.PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]")
    wrapped.save_pretrained(made)
    torch.manual_seed(seed)
    parts = [
        modules.Transformer(str(made)),
        modules.Pooling(48, "mean"),
        modules.Dense(48, 12),
        modules.Normalize(),
    ]
    SentenceTransformer(modules=parts, device="cpu").save_pretrained(str(folder / "saved"))
    return folder / "saved"


def test_the_library_embeds_with_the_output(tmp_path: Path) -> None:
    """It loads what is written from what it has written, tokenizer and all, and the embeddings of a twin's merge
    are the model's."""
    a, b = library_saved(tmp_path / "a"), library_saved(tmp_path / "b", 5)
    model = recognise(a)
    local = set(model.spec.spaces) - model.spec.residual_names
    g = random_alignment(model.spec, model.blocks, torch.Generator().manual_seed(2), local)
    isomerge.apply(g, a, out=tmp_path / "twin")
    isomerge.merge([a, tmp_path / "twin"], out=tmp_path / "merged")
    isomerge.merge([a, b], out=tmp_path / "other")
    wanted, *found = (
        SentenceTransformer(str(folder), device="cpu").encode(
            TEXTS, convert_to_tensor=True, show_progress_bar=False
        )
        for folder in (a, tmp_path / "twin", tmp_path / "merged", tmp_path / "other")
    )
    assert wanted.shape == (2, 12)
    assert relative(wanted[1], wanted[0]) > 0.01  # the tokenizer tells the texts apart
    assert relative(found[0], wanted) < 1e-5
    assert relative(found[1], wanted) < 1e-5
    assert relative(found[2], wanted) > 0.01
