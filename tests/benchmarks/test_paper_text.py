"""Table 1: labels, splits and scores, which can be wrong without being noticed; and all of it on tiny models."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter

import pytest
import torch
from transformers import BertConfig, BertModel

from benchmarks.paper import table1, text, trained
from benchmarks.paper.text import BASES, IGNORED, TAGS, TASKS, Encoded, Sentence, groups, universal


@pytest.mark.parametrize(
    ("tag", "part"),
    [
        ("nn", "NOUN"),
        ("np$", "NOUN"),
        ("nn-tl-hl", "NOUN"),
        ("bedz*", "VERB"),
        ("md*-hl", "VERB"),
        ("*", "ADV"),
        ("*-hl", "ADV"),
        ("pps+bez", "PRON"),
        ("nn$-tl", "NOUN"),
        ("np+bez-nc", "NOUN"),
        ("wrb", "ADV"),
        ("to", "PRT"),
        ("in", "ADP"),
        ("cs", "CONJ"),
        ("od", "ADJ"),
        ("fw-nn-tl", "X"),
        ("fw-in+nn", "X"),
        ("nil", "X"),
        ("--", "."),
        ("---hl", "."),
        ("(", "."),
        ("''", "."),
    ],
)
def test_tags(tag, part):
    assert universal(tag) == part


def test_tags_are_a_partition_and_unknown_ones_are_refused():
    assert tuple(BASES) == TAGS
    counts = Counter(base for bases in BASES.values() for base in bases.split())
    assert set(counts.values()) == {1}
    for tag in ("zzz-tl", ""):
        with pytest.raises(KeyError):
            universal(tag)


@pytest.mark.parametrize(("score", "label"), [(-4, 0), (-0.81, 0), (-0.8, 1), (0, 1), (0.8, 1), (0.81, 2), (4, 2)])
def test_sentiments(score, label):
    assert text.sentiment(score) == label
    assert len(text.SENTIMENTS) == 3


def sentences(documents: int, each: int) -> list[Sentence]:
    return [Sentence((f"{d} {i}",), (0,), str(d)) for d in range(documents) for i in range(each)]


@pytest.mark.parametrize("each", [1, 3, 7])
def test_splits_keep_documents_apart(each):
    every = sentences(20, each)
    train, test = text.split(every, 10)
    assert len(test) == 10
    assert not {s.document for s in train} & {s.document for s in test}
    assert len({s.document for s in train}) == 20 - -(-10 // each), "no document more than is needed is held out"
    assert text.split(every, 10) == (train, test), "one split for all"
    assert train != sorted(train, key=every.index), "documents are mixed"


def test_texts_that_occur_again_are_left_out():
    seen: set[str] = set()
    first = text.distinct(iter([Sentence(("Good  film",), (2,), "a"), Sentence(("good film ",), (0,), "b")]), seen)
    again = text.distinct(iter([Sentence(("GOOD", "film"), (1,), "c"), Sentence(("bad",), (0,), "c")]), seen)
    assert [s.document for s in first] == ["a"]
    assert [s.words for s in again] == [("bad",)]


def test_domains_of_a_task_share_no_text(monkeypatch):
    def read(task, domain):
        return [Sentence((word,), (0,), word) for word in ("shared", domain, *map(str, range(9)))]

    monkeypatch.setattr(text, "fetch", lambda name: None)
    monkeypatch.setattr(text, "read", read)
    text.load.cache_clear()
    parts = [s.words[0] for train, test in text.load("vader", 1).values() for s in (*train, *test)]
    text.load.cache_clear()
    assert len(parts) == len(set(parts)) == 10 + len(TASKS["vader"].domains)


def test_in_and_out_of_domain():
    vader, brown = list(groups(TASKS["vader"])), list(groups(TASKS["brown"]))
    assert len(vader) == 6
    assert len({g.name for g in vader}) == 6
    for group in vader:
        assert group.inside == group.members
        assert set(group.inside) | set(group.outside) == set(TASKS["vader"].domains)
        assert not set(group.members) & set(group.outside)
    assert [(len(g.members), g.inside == g.members, g.outside) for g in brown] == [
        *[(2, True, ())] * 3,
        (3, False, TASKS["brown"].held_out),
    ]
    assert not set(TASKS["brown"].domains) & set(TASKS["brown"].held_out)


def test_batches_are_everything_once():
    order = random.Random(0)
    lengths = [order.randrange(5, 50) for _ in range(203)]
    batches = text.batches(lengths, 8, order)
    assert sorted(i for batch in batches for i in batch) == list(range(203))
    assert sum(len(batch) < 8 for batch in batches) == 1
    wasted = sum(max(lengths[i] for i in b) * len(b) for b in batches) / sum(lengths)
    assert wasted < 1.15, "batches are of near lengths"
    assert batches != text.batches(lengths, 8, order)


def test_padding():
    task = TASKS["brown"]
    tensors = text.padded(task, [Encoded((5, 6, 7), (IGNORED, 3, IGNORED)), Encoded((8,), (2,))], pad=9)
    assert tensors["input_ids"].tolist() == [[5, 6, 7], [8, 9, 9]]
    assert tensors["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
    assert tensors["labels"].tolist() == [[IGNORED, 3, IGNORED], [2, IGNORED, IGNORED]]
    classes = text.padded(TASKS["vader"], [Encoded((5, 6), (2,)), Encoded((8,), (0,))], pad=9)
    assert classes["labels"].tolist() == [2, 0]


def test_f1_by_hand():
    targets = torch.tensor([0, 0, 0, 2, 2])
    predicted = torch.tensor([0, 0, 2, 2, 1])  # class 1 is predicted but occurs nowhere
    # class 0: precision 1, recall 2/3; class 2: precision 1/2, recall 1/2
    assert table1.f1(targets, predicted) == {
        "macro": pytest.approx(100 * (0.8 + 0.5) / 2),
        "micro": pytest.approx(60),
    }
    assert table1.f1(targets, torch.zeros(5, dtype=torch.int64))["macro"] == pytest.approx(100 * 0.75 / 2), (
        "never predicted: 0"
    )


TINY = table1.Preset(
    "tiny", train=12, test=6, scored=5, epochs=1, lr=1e-2, batch=4, length=8, seeds=(0,), statistics=8, fisher=4
)
LETTERS = "abcdefgh"


def tiny_tokenizer():
    """Words of letters; every letter behind the first is a piece of its own."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *LETTERS, *(f"##{letter}" for letter in LETTERS)]
    vocab = {name: i for i, name in enumerate(names)}
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", vocab["[SEP]"]), ("[CLS]", vocab["[CLS]"]))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]")


def toy_sentences(task, domain):
    """18 sentences of one to three words, drawn by the domain."""
    rng, drawn = torch.Generator().manual_seed(sum(map(ord, domain))), []
    for number in range(18):
        letters = torch.randint(
            len(LETTERS), (int(torch.randint(1, 4, (1,), generator=rng)), 2), generator=rng
        ).tolist()
        words = tuple(LETTERS[a] + LETTERS[b] for a, b in letters)
        labels = tuple(a % 3 for a, _ in letters)
        drawn.append(
            Sentence(words, labels, str(number))
            if task.tokens
            else Sentence((" ".join(words),), labels[:1], str(number))
        )
    return drawn[:12], drawn[12:]


@pytest.fixture
def toys(tmp_path, monkeypatch):
    """A base, data and a place for models, all tiny."""
    config = BertConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=12,
        max_position_embeddings=16,
    )  # fmt: skip
    torch.manual_seed(0)
    BertModel(config).save_pretrained(tmp_path / "base")
    tokenizer = tiny_tokenizer()
    monkeypatch.setattr(table1, "BASE", tmp_path / "base")
    monkeypatch.setattr(table1, "MODELS", tmp_path / "models")
    monkeypatch.setattr(text, "tokenizer", lambda: tokenizer)

    def load(name, test):
        return {d: toy_sentences(TASKS[name], d) for d in (*TASKS[name].domains, *TASKS[name].held_out)}

    monkeypatch.setattr(table1, "load", load)
    yield tmp_path
    table1.matched.cache_clear()
    table1.of_end.cache_clear()


def test_a_label_is_on_the_first_piece_of_its_word(toys):
    (row,) = text.encode(TASKS["brown"], [Sentence(("ab", "c", "def"), (4, 5, 6), "")], 7)
    assert row.labels == (IGNORED, 4, IGNORED, 5, 6, IGNORED, IGNORED)
    assert len(row.ids) == 7, "cut, with its end"
    assert text.encode(TASKS["vader"], [Sentence(("ab c",), (2,), "")], 7)[0].labels == (2,)


@pytest.mark.parametrize("name", ["vader", "brown"])
def test_scores_are_of_the_models_own_outputs(toys, name):
    task = TASKS[name]
    folder, other = (table1.Run(TINY, task, domain, 0).model() for domain in task.domains[:2])
    domain = task.domains[0]
    by_head = table1.predictions(TINY, task, folder, [domain], {"other": other})[domain]
    model = table1.kind(task).from_pretrained(folder).eval()
    tested = text.encode(task, toy_sentences(task, domain)[1][:5], 8)
    tensors = text.padded(task, sorted(tested, key=lambda s: len(s.ids)))
    labels = tensors.pop("labels")
    assert len(labels) == 5
    expected = model(**tensors).logits.softmax(-1)[labels != IGNORED]
    assert torch.equal(by_head["merged"][1], labels[labels != IGNORED])
    torch.testing.assert_close(by_head["merged"][0], expected, atol=1e-6, rtol=1e-5)
    assert not torch.allclose(by_head["other"][0], expected, atol=1e-4), "another classifier on the same body"


def test_training_repeats_and_follows_its_settings(toys, monkeypatch):
    run, tuned = table1.Run(TINY, TASKS["vader"], "movie", 0), []
    monkeypatch.setattr(table1, "tune", lambda run, tune=table1.tune: tuned.append(run) or tune(run))
    first = table1.kind(run.task).from_pretrained(run.model()).state_dict()
    run.model()
    dataclasses.replace(run, preset=dataclasses.replace(TINY, fisher=3)).model()
    assert len(tuned) == 1, "it is there, and its tuning does not depend on statistics"
    dataclasses.replace(run, preset=dataclasses.replace(TINY, lr=1e-3)).model()
    assert len(tuned) == 2, "of another learning rate"
    assert {path.name for path in run.folder.parent.iterdir()} == {"movie-seed-0"}
    again, losses = table1.tune(run)
    assert len(losses) == 3
    assert {key for key, tensor in again.state_dict().items() if not torch.equal(tensor, first[key])} == set()
    heads = [
        table1.untuned(dataclasses.replace(run, domain=domain, seed=seed))
        .get_parameter("classifier.weight")
        .detach()
        for domain, seed in (("movie", 0), ("nyt", 0), ("nyt", 1))
    ]
    assert torch.equal(heads[0], heads[1]), "one initial head per seed"
    assert not torch.equal(heads[0], heads[2])


def test_rates_warm_up_and_decay_as_in_the_library(toys, monkeypatch):
    from transformers import get_linear_schedule_with_warmup

    rates = []
    monkeypatch.setattr(trained, "descend", lambda model, loss, steps, **more: rates.extend(steps) or [0.0])
    preset = dataclasses.replace(TINY, epochs=10, warmup=0.1)
    table1.tune(table1.Run(preset, TASKS["vader"], "movie", 0))
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=preset.lr)
    schedule = get_linear_schedule_with_warmup(optimizer, 3, 30)
    expected = []
    for _ in range(30):
        expected += schedule.get_last_lr()
        optimizer.step()
        schedule.step()
    assert rates == pytest.approx(expected)


def test_a_group_is_matched_once_and_every_cell_is_whole(toys, monkeypatch):
    columns, task = [], TASKS["brown"]
    monkeypatch.setattr(
        table1, "match", lambda runs, how, work, match=table1.match: columns.append(how) or match(runs, how, work)
    )
    cells = table1.cells(TINY)
    pair, everyone = next(groups(task)), list(groups(task))[-1]

    def measured(*rest):
        return table1.measure(**cells[table1.key(task, 0, *rest)])

    assert measured("end", "news").keys() == {*task.domains, *task.held_out}
    assert measured("ensemble", everyone.name).keys() == set(everyone.outside)
    measured(pair.name, "simple", "none")
    simple, fisher, regmean = (measured(pair.name, method, "ours") for method in table1.METHODS)
    again = measured(pair.name, "simple", "ours")
    three = measured(everyone.name, "simple", "paper")
    assert columns == ["none", "ours", "paper"]
    assert simple["scores"].keys() == simple["own_head"].keys() == set(pair.inside)
    before, after = simple["distances"][0]
    assert 0 < after < before
    assert regmean["distances"] == fisher["distances"] == simple["distances"]
    assert all(regmean["seconds"].values())
    assert (three["scores"].keys(), three["own_head"], len(three["distances"])) == (set(everyone.outside), {}, 2)
    assert again["scores"] == simple["scores"], "measured again it is the same"
