"""Text: windows, records, masks, and the same data in other forms."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from isomerge import archs
from isomerge.errors import IsomergeError
from isomerge.observe.data.opening_data import open_data
from isomerge.observe.data.text import Encoder, masked
from observe.data.checkpoints import BYTES, CAUSAL, CLASSIFIER, MASKED, SEQ2SEQ, WORDS, ids, save_tokenizer


def lines(path: Path, *records: object) -> str:
    """A JSON lines file."""
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint's tokenizer with [CLS] and [SEP]."""
    return save_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer without special tokens around texts."""
    return save_tokenizer(tmp_path_factory.mktemp("bare"), special=False)


@given(sizes=st.lists(st.integers(0, 30), max_size=6), length=st.integers(3, 12))
def test_windows_are_the_text(sizes: list[int], length: int) -> None:
    """Windows, put together, are the beginning of the text; only less than one window is lost."""
    data = bytes(range(256))[: sum(sizes)]
    pieces = [data[sum(sizes[:k]) : sum(sizes[: k + 1])] for k in range(len(sizes))]
    windows = list(Encoder(None, length, prefix=(1,), suffix=(2,)).windows(pieces))
    assert all(w[0] == 1 and w[-1] == 2 for w in windows)
    joined = bytes(token for w in windows for token in w[1:-1])
    assert data.startswith(joined)
    if len(windows) > 1 or len(data) >= length - 2:
        assert all(len(w) == length for w in windows)
        assert len(data) - len(joined) < length - 2
    else:
        assert joined == data


@pytest.mark.parametrize(("pad", "read"), [(None, 10), (1, 10), (0, 11)])
def test_positions_behind_the_padding(bare: Path, tmp_path: Path, pad: int | None, read: int) -> None:
    """RoBERTa's first token has the position behind the padding's, so that texts are cut before its table ends."""
    import transformers

    sizes = {"hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 4}
    known = {} if pad is None else {"pad_token_id": pad}
    live = transformers.RobertaConfig(
        vocab_size=len(WORDS), max_position_embeddings=12, num_labels=2, **sizes, **known
    )
    config = {key: value for key, value in live.to_dict().items() if key != "pad_token_id" or pad is not None}
    config["architectures"] = ["RobertaForSequenceClassification"]
    examples = open_data(lines(tmp_path / "x.jsonl", {"text": "a b c " * 9, "label": 1}), bare, config=config)
    assert examples.tensors["input_ids"].shape == (1, read)
    with torch.no_grad():
        transformers.RobertaForSequenceClassification(live)(input_ids=examples.tensors["input_ids"])
    too_long = lines(tmp_path / "y.jsonl", {"input_ids": [5] * (read + 1), "label": 1})
    with pytest.raises(IsomergeError, match=f"the checkpoint reads {read}: cut them"):
        open_data(too_long, bare, config=config)


def test_positions_take_one_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a model's first token stands behind the padding is asked of its own text, or of the one it is like."""
    expanded: list[str] = []
    expand = archs.expanded_text
    monkeypatch.setattr(
        archs, "expanded_text", lambda text, name, texts: expanded.append(name) or expand(text, name, texts)
    )
    archs._is_behind_padding.cache_clear()
    kinds = ["roberta", "xlm-roberta", "llama", "no such type", None]
    assert [archs.is_behind_padding(kind) for kind in kinds] == [True, True, False, False, False]
    assert expanded == [archs.spec_texts()[kind][0] for kind in kinds[:3]]


def test_bytes(tmp_path: Path) -> None:
    """Without a tokenizer and with 256 tokens, text is its bytes, even where it is no UTF-8."""
    data = bytes(range(256)) * 2
    (tmp_path / "x.bin").write_bytes(data)
    examples = open_data(str(tmp_path / "x.bin"), tmp_path, config=BYTES, length=50)
    assert torch.equal(examples.tensors["input_ids"].flatten(), torch.tensor(list(data[:500])))
    assert set(examples.tensors) == {"input_ids"}
    assert examples.labelled
    short = open_data(str(tmp_path / "x.bin"), tmp_path, config=BYTES, length=1000, limit=2)
    assert short.tensors["input_ids"].shape == (2, 64)
    record = lines(tmp_path / "x.jsonl", {"text": "aé"})
    assert open_data(record, tmp_path, config=BYTES).tensors["input_ids"].tolist() == [list("aé".encode())]


def test_windows_of_a_folder(bare: Path, tmp_path: Path) -> None:
    """Files in the order of their names, joined."""
    (tmp_path / "2.txt").write_text("d e f\ng")
    (tmp_path / "1.txt").write_text("a b\nc ")
    (tmp_path / "notes.pdf").write_text("j")
    examples = open_data(str(tmp_path), bare, config=CAUSAL, length=3)
    assert examples.tensors["input_ids"].tolist() == [ids("a b c"), ids("d e f")]


def test_special_tokens_go_around_windows(folder: Path, tmp_path: Path) -> None:
    """The tokenizer's own; and the rest of a text is kept when it is all there is."""
    (tmp_path / "x.txt").write_text("a b c d e")
    examples = open_data(str(tmp_path / "x.txt"), folder, config=CAUSAL, length=4)
    assert examples.tensors["input_ids"].tolist() == [[1, *ids("a b"), 2], [1, *ids("c d"), 2]]
    whole = open_data(str(tmp_path / "x.txt"), folder, config=CAUSAL, length=30)
    assert whole.tensors["input_ids"].tolist() == [[1, *ids("a b c d e"), 2]]


def test_classified_text(folder: Path, tmp_path: Path) -> None:
    """Records, padded on the right, with labels as ids, their text or names; the first string is the text."""
    config = {**CLASSIFIER, "id2label": {"0": "bad", "1": "good"}}
    data = lines(
        tmp_path / "x.jsonl",
        {"text": "a b c d e f", "label": 1},
        {"note": 3, "sentence": "g", "label": "bad"},
        {"labels": "1", "body": "h i"},
    )
    examples = open_data(data, folder, config=config, length=6)
    assert examples.tensors["input_ids"].tolist() == [
        [1, *ids("a b c d"), 2], [1, *ids("g"), 2, 0, 0, 0], [1, *ids("h i"), 2, 0, 0]
    ]  # fmt: skip
    assert examples.tensors["attention_mask"].tolist() == [[1] * 6, [1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 0, 0]]
    assert examples.tensors["labels"].tolist() == [1, 0, 1]
    assert examples.labelled
    again = tmp_path / "x.json"
    again.write_text(json.dumps([json.loads(line) for line in Path(data).read_text().splitlines()]))
    assert open_data(str(again), folder, config=config, length=6).fingerprint == examples.fingerprint
    unlabelled = open_data(lines(tmp_path / "u.jsonl", {"text": "a"}), folder, config=config)
    assert not unlabelled.labelled


def test_pairs(folder: Path, tmp_path: Path) -> None:
    """Two texts of one example keep their types."""
    data = lines(tmp_path / "x.jsonl", {"text": "a", "text_pair": "b c", "label": 0})
    examples = open_data(data, folder, config=CLASSIFIER)
    assert examples.tensors["input_ids"].tolist() == [[1, 5, 2, 6, 7, 2]]
    assert examples.tensors["token_type_ids"].tolist() == [[0, 0, 0, 1, 1, 1]]


def test_one_fingerprint_for_every_form(bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Text, records, token lists, tensors, a function: the same numbers."""
    rows = ["a b c", "d e f"]
    (tmp_path / "x.txt").write_text(" ".join(rows))
    numbers = torch.tensor([ids(row) for row in rows])
    save_file({"input_ids": numbers, "attention_mask": torch.ones_like(numbers)}, tmp_path / "x.safetensors")
    (tmp_path / "made_here.py").write_text(
        f"import torch\n\ndef batches():\n    yield {{'input_ids': torch.tensor({numbers.tolist()})}}\n"
        f"\ndef single():\n    return [{{'input_ids': torch.tensor(r)}} for r in {numbers.tolist()}]\n"
        f"\ndef texts():\n    return [{{'text': r}} for r in {rows}]\n"
    )
    monkeypatch.chdir(tmp_path)
    forms = [
        "x.txt", "x.safetensors", "made_here:batches", "made_here:single", "made_here:texts",
        lines(tmp_path / "x.jsonl", *({"text": r} for r in rows)),
        lines(tmp_path / "y.jsonl", *({"input_ids": ids(r), "labels": ids(r)} for r in rows)),
    ]  # fmt: skip
    found = [open_data(form, bare, config=CAUSAL, length=3) for form in forms]
    assert torch.equal(found[0].tensors["input_ids"], numbers)
    assert {e.fingerprint for e in found} == {found[0].fingerprint}


def test_labels_of_a_causal_model(bare: Path, tmp_path: Path) -> None:
    """Labels that leave a part out are shifted to the logits that predict them; padding is never predicted."""
    data = lines(
        tmp_path / "x.jsonl",
        {"input_ids": [5, 6, 7, 8], "labels": [-100, -100, 7, 8]},
        {"input_ids": [5, 6], "labels": [5, 6]},
    )
    examples = open_data(data, bare, config=CAUSAL)
    assert examples.tensors["labels"].tolist() == [[-100, 7, 8, -100], [6, -100, -100, -100]]


def test_classes_are_nothing_to_a_language_model(bare: Path, tmp_path: Path) -> None:
    """Labels of examples, in data that was made for a classifier."""
    one = open_data(lines(tmp_path / "x.jsonl", {"text": "a b", "label": 1}), bare, config=CAUSAL)
    two = open_data(lines(tmp_path / "y.jsonl", {"input_ids": ids("a b"), "label": 1}), bare, config=CAUSAL)
    assert set(one.tensors) == {"input_ids"}
    assert one.fingerprint == two.fingerprint


def test_masks(folder: Path, tmp_path: Path) -> None:
    """15 % of the tokens that are not special; the same for an example in any data set."""
    words = [WORDS[5 + k % 10] for k in range(40)]
    one, two = {"text": " ".join(words)}, {"text": " ".join(words[3:30])}
    both = open_data(lines(tmp_path / "x.jsonl", one, two), folder, config=MASKED)
    hidden = both.tensors["labels"] != -100
    assert hidden.sum(1).tolist() == [6, 4]
    assert bool((both.tensors["input_ids"][hidden] == WORDS.index("[MASK]")).all())
    restored = torch.where(hidden, both.tensors["labels"], both.tensors["input_ids"])
    assert restored[0].tolist() == [1, *ids(one["text"]), 2]
    alone = open_data(lines(tmp_path / "y.jsonl", one), folder, config=MASKED)
    assert torch.equal(alone.tensors["labels"][0], both.tensors["labels"][0])
    assert both.head(1).fingerprint != both.fingerprint
    assert open_data(str(tmp_path / "x.jsonl"), folder, config=MASKED).fingerprint == both.fingerprint


@given(st.lists(st.integers(0, 30), min_size=1, max_size=50))
def test_masks_spare_special_tokens(row: list[int]) -> None:
    """At least one token is hidden when there is one that may be; no special one ever is."""
    tokens = torch.tensor(row)
    new, labels = masked(tokens, 99, frozenset(range(5)))
    hidden = labels != -100
    free = sum(token >= 5 for token in row)
    assert int(hidden.sum()) == (max(1, round(0.15 * free)) if free else 0)
    assert torch.equal(labels[hidden], tokens[hidden])
    assert bool((tokens[hidden] >= 5).all())
    assert bool((new[hidden] == 99).all())
    assert torch.equal(new[~hidden], tokens[~hidden])


def test_given_masks_are_kept(tmp_path: Path) -> None:
    """A masked model's own labels, without a tokenizer."""
    ids_, labels = torch.tensor([[5, 3, 7]]), torch.tensor([[-100, 6, -100]])
    save_file({"input_ids": ids_, "labels": labels}, tmp_path / "x.safetensors")
    examples = open_data(str(tmp_path / "x.safetensors"), tmp_path, config=MASKED)
    assert torch.equal(examples.tensors["labels"], labels)
    assert torch.equal(examples.tensors["input_ids"], ids_)


def test_encoder_decoder(folder: Path, tmp_path: Path) -> None:
    """Targets from records, or the second half of a window; the decoder reads the labels shifted to the right."""
    data = lines(tmp_path / "x.jsonl", {"text": "a b c", "target": "d e"}, {"text": "f", "target": "g"})
    examples = open_data(data, folder, config=SEQ2SEQ)
    assert examples.tensors["labels"].tolist() == [[1, *ids("d e"), 2], [1, *ids("g"), 2, -100]]
    assert examples.tensors["decoder_input_ids"].tolist() == [[0, 1, *ids("d e")], [0, 1, *ids("g"), 2]]
    (tmp_path / "x.txt").write_text("a b c d e f g h")
    halves = open_data(str(tmp_path / "x.txt"), folder, config=SEQ2SEQ, length=6)
    assert halves.tensors["input_ids"].tolist() == [[1, *ids("a b"), 2], [1, *ids("e f"), 2]]
    assert halves.tensors["labels"].tolist() == [[1, *ids("c d"), 2], [1, *ids("g h"), 2]]
    assert halves.labelled


BAD = [
    ({"text": "a", "label": 7}, CLASSIFIER, ["line 1", "'7'", "0 to 1"]),
    ({"text": "a", "label": "fine"}, CLASSIFIER, ["'fine'", "label2id"]),
    ({"text": "a", "label": 0.5}, CLASSIFIER, ["'0.5'", "label2id"]),
    ({"text": 3}, CLASSIFIER, ["line 1", "no text"]),
    ({"label": 1}, CLASSIFIER, ["line 1", "no text"]),
    ({"text": "a"}, SEQ2SEQ, ["line 1", "target"]),
    ({"input_ids": [1, 99]}, CAUSAL, ["99", "vocabulary", "14"]),
    ({"input_ids": [1, -1]}, CAUSAL, ["-1", "vocabulary"]),
    ({"input_ids": [[1]]}, CAUSAL, ["input_ids", "list"]),
    ({"input_ids": []}, CAUSAL, ["input_ids", "list"]),
    ({"input_ids": [0.5]}, CAUSAL, ["input_ids", "whole numbers"]),
    ({"input_ids": ["a"]}, CAUSAL, ["no numbers"]),
    ({"input_ids": [5] * 40}, CAUSAL, ["40", "32"]),
    ({"input_ids": [5, 6], "labels": [5]}, CAUSAL, ["labels", "per token"]),
    ({"text": "\ud800"}, CAUSAL, ["line 1", "no Unicode"]),
    ({"text": "a", "label": [1]}, CLASSIFIER, ["line 1", "'[1]'"]),
    ([1], CAUSAL, ["line 1", "no JSON object"]),
]


@pytest.mark.parametrize(("record", "config", "words"), BAD)
def test_bad_records(record: object, config: dict, words: list[str], folder: Path, tmp_path: Path) -> None:
    """One sentence that names the place and what was expected."""
    data = lines(tmp_path / "x.jsonl", record)
    with pytest.raises(IsomergeError) as caught:
        open_data(data, folder, config=config)
    assert [word for word in ["x.jsonl", *words] if word not in str(caught.value)] == []


def test_a_target_without_a_token(bare: Path, tmp_path: Path) -> None:
    """An encoder-decoder that is to write nothing is told the line."""
    data = lines(tmp_path / "x.jsonl", {"text": "a", "target": "b"}, {"text": "a", "target": " "})
    with pytest.raises(IsomergeError, match=r"x\.jsonl, line 2 has an empty target: leave it out"):
        open_data(data, bare, config=SEQ2SEQ)


def test_bad_files(folder: Path, tmp_path: Path) -> None:
    """Damaged or empty files, and text that cannot be read."""
    (tmp_path / "cut.jsonl").write_text('{"text": "a"}\n{"text": ')
    (tmp_path / "cut.json").write_text('[{"text": "a"},')
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "latin.txt").write_bytes(b"\xe9t\xe9")
    (tmp_path / "mixed.jsonl").write_text('{"text": "a", "label": 1}\n{"text": "b"}\n')
    (tmp_path / "bytes.jsonl").write_bytes(b'{"text": "\xe9"}\n')
    for name, word in {
        "cut.jsonl": "line 2 is not valid JSON", "cut.json": "not valid JSON", "empty.txt": "no examples",
        "latin.txt": "UTF-8", "mixed.jsonl": "example 2", "bytes.jsonl": "UTF-8",
    }.items():  # fmt: skip
        with pytest.raises(IsomergeError, match=word) as caught:
            open_data(str(tmp_path / name), folder, config=CLASSIFIER)
        assert name in str(caught.value)


def test_no_tokenizer(tmp_path: Path) -> None:
    """What is missing, where, and what to do: for text, and for the masks of token lists."""
    (tmp_path / "x.txt").write_text("a b")
    with pytest.raises(IsomergeError, match=r"has no tokenizer .* copy") as caught:
        open_data(str(tmp_path / "x.txt"), tmp_path / "model", config=CAUSAL)
    assert str(tmp_path / "model") in str(caught.value)
    data = lines(tmp_path / "x.jsonl", {"input_ids": [5, 6, 7]})
    with pytest.raises(IsomergeError, match="mask token"):
        open_data(data, tmp_path / "model", config=MASKED)
    hidden = open_data(data, tmp_path / "model", config={**MASKED, "mask_token_id": 3})
    assert int((hidden.tensors["input_ids"] == 3).sum()) == 1
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(IsomergeError, match="cannot load this tokenizer"):
        open_data(str(tmp_path / "x.txt"), tmp_path, config=CAUSAL)


def test_bad_options(folder: Path, tmp_path: Path) -> None:
    """Limits and lengths that leave nothing."""
    (tmp_path / "x.txt").write_text("a b")
    for options in ({"limit": 0}, {"length": 1}, {"length": 2}):
        with pytest.raises(IsomergeError, match="--l"):
            open_data(str(tmp_path / "x.txt"), folder, config=CAUSAL, **options)
    with pytest.raises(IsomergeError, match="cannot be looked up"):
        open_data("x" * 5000, folder, config=CAUSAL)
    with pytest.raises(IsomergeError, match="neither vocab_size nor image_size"):
        open_data(str(tmp_path / "x.txt"), folder, config={})


def test_tables(folder: Path, tmp_path: Path) -> None:
    """Tables have examples on their lines, quotes, other separators, and no more columns than names; packed files
    are refused."""
    (tmp_path / "x.csv").write_text('\ufefftext,label\n"a, b",1\nc,LABEL_0\n', encoding="utf-8")
    (tmp_path / "x.tsv").write_text("label\ttext\n0\ta b\n")
    found = open_data(str(tmp_path / "x.csv"), folder, config=CLASSIFIER).tensors
    assert found["labels"].tolist() == [1, 0]
    assert found["attention_mask"].sum(1).tolist() == [4, 3]
    assert open_data(str(tmp_path / "x.tsv"), folder, config=CLASSIFIER).tensors["labels"].tolist() == [0]
    for name, text, word in (
        ("y.csv", "text,label\na,b,1\n", r"y\.csv, line 2 has not as many columns"), ("z.csv", "", "holds no examples"),
        ("x.Arrow", "ARROW1", r"x\.Arrow is no text: write it as JSON lines"),
        ("semicolons.csv", "text;label\na;1\n", r"semicolons\.csv has no column text or image, but text;label: name the columns"),
        ("nameless.csv", "a,1\nb,0\n", r"nameless\.csv has no column text or image, but a, 1"),
        ("twice.csv", "text,label,text\na,1,b\n", r"twice\.csv has two columns text"),
    ):  # fmt: skip
        (tmp_path / name).write_text(text)
        with pytest.raises(IsomergeError, match=word):
            open_data(str(tmp_path / name), folder, config=CLASSIFIER)
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub/README.md").write_text("b")
    (tmp_path / "hub/x.csv").write_text("text,label\na,1\n")
    assert open_data(str(tmp_path / "hub"), folder, config=CLASSIFIER).tensors["input_ids"].tolist() == [[1, 5, 2]]
    (tmp_path / "X.CSV").write_text("text, label\na,1\n")
    assert open_data(str(tmp_path / "X.CSV"), folder, config=CLASSIFIER).tensors["labels"].tolist() == [1]
    (tmp_path / "x.json").write_text('\ufeff\n [{"text": "a", "label": 1}]', encoding="utf-8")
    assert open_data(str(tmp_path / "x.json"), folder, config=CLASSIFIER).tensors["labels"].tolist() == [1]


def test_what_a_decoder_is_given_is_kept(tmp_path: Path) -> None:
    """Without labels there is no loss, and no other text is put in its place; masks are of zeros and ones."""
    data = lines(tmp_path / "x.jsonl", {"input_ids": [4, 5, 6, 7], "decoder_input_ids": [0, 8, 9]})
    examples = open_data(data, tmp_path, config=SEQ2SEQ)
    assert not examples.labelled
    assert examples.tensors["decoder_input_ids"].tolist() == [[0, 8, 9]]
    assert examples.tensors["input_ids"].tolist() == [[4, 5, 6, 7]]
    data = lines(tmp_path / "x.jsonl", {"input_ids": [4, 5, 6], "attention_mask": [1, 1, 2]})
    with pytest.raises(IsomergeError, match="attention_mask must be 1 for a token"):
        open_data(data, tmp_path, config=CAUSAL)
