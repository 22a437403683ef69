"""Table 1, text: labels, splits and scores, which can be wrong without being noticed."""

from __future__ import annotations

import random
from collections import Counter

import pytest
import torch

from benchmarks.paper.text import data
from benchmarks.paper.text.data import IGNORED, TASKS, Encoded, Sentence
from benchmarks.paper.text.groups import groups
from benchmarks.paper.text.scoring import f1
from benchmarks.paper.text.tags import BASES, TAGS, universal


@pytest.mark.parametrize(
    ("tag", "found"),
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
def test_tags(tag, found):
    assert universal(tag) == found


def test_tags_are_a_partition_and_unknown_ones_are_refused():
    assert tuple(BASES) == TAGS
    counts = Counter(base for bases in BASES.values() for base in bases.split())
    assert set(counts.values()) == {1}
    for tag in ("zzz-tl", ""):
        with pytest.raises(KeyError):
            universal(tag)


@pytest.mark.parametrize(("score", "label"), [(-4, 0), (-0.81, 0), (-0.8, 1), (0, 1), (0.8, 1), (0.81, 2), (4, 2)])
def test_sentiments(score, label):
    assert data.sentiment(score) == label
    assert len(data.SENTIMENTS) == 3


def sentences(documents: int, each: int) -> list[Sentence]:
    return [Sentence((f"{d} {i}",), (0,), str(d)) for d in range(documents) for i in range(each)]


@pytest.mark.parametrize("each", [1, 3, 7])
def test_splits_keep_documents_apart(each):
    every = sentences(20, each)
    train, test = data.split(every, 10)
    assert len(test) == 10
    assert not {s.document for s in train} & {s.document for s in test}
    assert len({s.document for s in train}) == 20 - -(-10 // each), "no document more than is needed is held out"
    assert data.split(every, 10) == (train, test), "one split for all"
    assert train != sorted(train, key=every.index), "documents are mixed"


def test_texts_that_occur_again_are_left_out():
    seen: set[str] = set()
    first = data.distinct(iter([Sentence(("Good  film",), (2,), "a"), Sentence(("good film ",), (0,), "b")]), seen)
    again = data.distinct(iter([Sentence(("GOOD", "film"), (1,), "c"), Sentence(("bad",), (0,), "c")]), seen)
    assert [s.document for s in first] == ["a"]
    assert [s.words for s in again] == [("bad",)]


def test_domains_of_a_task_share_no_text(monkeypatch):
    def read(domain):
        return iter([Sentence((text,), (0,), text) for text in ("shared", domain, *map(str, range(9)))])

    monkeypatch.setattr(data, "fetch", lambda name: None)
    monkeypatch.setattr(data, "_vader", read)
    data.load.cache_clear()
    parts = [s.words[0] for train, test in data.load("vader", 1).values() for s in (*train, *test)]
    data.load.cache_clear()
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
    found = data.batches(lengths, 8, order)
    assert sorted(i for batch in found for i in batch) == list(range(203))
    assert sum(len(batch) < 8 for batch in found) == 1
    wasted = sum(max(lengths[i] for i in b) * len(b) for b in found) / sum(lengths)
    assert wasted < 1.15, "batches are of near lengths"
    assert found != data.batches(lengths, 8, order)


def test_padding():
    task = TASKS["brown"]
    tensors = data.padded(task, [Encoded((5, 6, 7), (IGNORED, 3, IGNORED)), Encoded((8,), (2,))], pad=9)
    assert tensors["input_ids"].tolist() == [[5, 6, 7], [8, 9, 9]]
    assert tensors["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
    assert tensors["labels"].tolist() == [[IGNORED, 3, IGNORED], [2, IGNORED, IGNORED]]
    classes = data.padded(TASKS["vader"], [Encoded((5, 6), (2,)), Encoded((8,), (0,))], pad=9)
    assert classes["labels"].tolist() == [2, 0]


def test_f1_by_hand():
    targets = torch.tensor([0, 0, 0, 2, 2])
    predicted = torch.tensor([0, 0, 2, 2, 1])  # class 1 is predicted but occurs nowhere
    # class 0: precision 1, recall 2/3; class 2: precision 1/2, recall 1/2
    assert f1(targets, predicted) == {"macro": pytest.approx(100 * (0.8 + 0.5) / 2), "micro": pytest.approx(60)}
    assert f1(targets, torch.zeros(5, dtype=torch.int64))["macro"] == pytest.approx(100 * 0.75 / 2), (
        "never predicted: 0"
    )
