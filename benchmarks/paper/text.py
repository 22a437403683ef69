"""The data of Table 1: sentiment of VADER's four domains, and parts of speech of the Brown corpus by genre.

**Sentiment.** The mean of some twenty human ratings, from -4 to 4, in three classes: negative below -0.8, positive
above 0.8, neutral between. One scale for all domains, as a merged model must mean the same thing everywhere; at 0.8
the rarest class of a domain is a tenth of it (movie reviews have few neutral snippets, editorials few positive
ones), so that macro F1 rests on more than a handful.

**Parts of speech.** The Brown corpus' tags reduced to the twelve universal ones of Petrov, Das and McDonald (2012). A
tag is a base (`nn`), perhaps marked as of a title, a headline or cited (`nn-tl`), perhaps of a foreign word
(`fw-nn`), perhaps negated (`md*`) or of two words in one (`pps+bez` for *he's*, which counts as its first). Where
Petrov et al. and the Universal Dependencies differ, the latter are followed, as far as a tag decides it: possessives
(*my*) and the existential *there* are pronouns, ordinals adjectives, subordinating conjunctions conjunctions.

**Splits.** Whole documents (an article, a review, a file of Brown) are either tested on or trained on, in the same
way for all seeds. A text that occurs again, in its domain or in another, is left out.
"""

from __future__ import annotations

import html
import json
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from benchmarks.fetch import fetch
from benchmarks.harness import DATA

BASE = DATA / "minilm"
IGNORED = -100
"""The label of a piece that is not the first of its word."""
NEUTRAL = 0.8
SENTIMENTS = ("negative", "neutral", "positive")
BASES = {
    "NOUN": "nn nn$ nns nns$ np np$ nps nps$ nr nr$ nrs",
    "VERB": "be bed bedz beg bem ben ber bez do dod doz hv hvd hvg hvn hvz md vb vbd vbg vbn vbz",
    "ADJ": "jj jj$ jjr jjs jjt od",
    "ADV": "rb rb$ rbr rbt rn ql qlp wrb wql *",
    "PRON": "pn pn$ pp$ pp$$ ppl ppls ppo pps ppss wp$ wpo wps ex",
    "DET": "abl abn abx ap ap$ at dt dt$ dti dts dtx wdt",
    "ADP": "in",
    "NUM": "cd cd$",
    "CONJ": "cc cs",
    "PRT": "rp to",
    ".": ". , : ( ) -- `` '' '",
    "X": "uh nil fw",
}
TAGS = tuple(BASES)
OF_BASE = {base: tag for tag, bases in BASES.items() for base in bases.split()}
MARKS = re.compile(r"(-(tl|hl|nc))+$")


@dataclass(frozen=True)
class Task:
    """One half of the table."""

    name: str
    domains: tuple[str, ...]
    """That models are tuned on, merged pairwise."""
    held_out: tuple[str, ...]
    """That no model is tuned on: what all models of a seed, merged, are tested on."""
    labels: tuple[str, ...]
    tokens: bool
    """Whether words are classified, or whole sentences."""


TASKS = {
    "vader": Task("vader", ("movie", "amazon", "nyt", "tweets"), (), SENTIMENTS, False),
    "brown": Task("brown", ("news", "learned", "adventure"), ("religion", "humor"), TAGS, True),
}


@dataclass(frozen=True)
class Group:
    """Models of one seed that are merged; the first is the anchor.

    In domain are the domains of its members; out of domain, those that none of them was tuned on.
    """

    task: Task
    members: tuple[str, ...]
    inside: tuple[str, ...]
    outside: tuple[str, ...]

    @property
    def name(self) -> str:
        """As in the keys of results."""
        return "+".join(self.members)


def groups(task: Task) -> Iterator[Group]:
    """The groups of a task, as in the paper's Table 1.

    Pairs of domains, tested on both. Where a task has held-out domains, all models merged are tested on those;
    where it has none, pairs are tested on the domains of the others.
    """
    for pair in combinations(task.domains, 2):
        others = () if task.held_out else tuple(d for d in task.domains if d not in pair)
        yield Group(task, pair, pair, others)
    if task.held_out:
        yield Group(task, task.domains, (), task.held_out)


@dataclass(frozen=True)
class Sentence:
    """A text, or its words, with one label, or one per word; and the document it is from."""

    words: tuple[str, ...]
    labels: tuple[int, ...]
    document: str


def universal(tag: str) -> str:
    """The universal part of speech of a Brown tag.

    Raises:
        KeyError: the corpus has no such tag.
    """
    if tag.startswith("fw-"):
        return "X"
    base = MARKS.sub("", tag).split("+")[0]
    return OF_BASE[base if base in OF_BASE else MARKS.sub("", base).rstrip("*")]


def sentiment(score: float) -> int:
    """The class of a mean human rating."""
    return 0 if score < -NEUTRAL else 2 if score > NEUTRAL else 1


def read(task: str, domain: str) -> Iterator[Sentence]:
    """All sentences of a domain. Where VADER's ids are `document_sentence`, the document is known."""
    for line in (DATA / task / f"{domain}.jsonl").open(encoding="utf-8"):
        row = json.loads(line)
        if task == "vader":
            yield Sentence((html.unescape(row["text"]),), (sentiment(row["score"]),), row["id"].split("_")[0])
        else:
            yield Sentence(tuple(row["words"]), tuple(TAGS.index(universal(t)) for t in row["tags"]), row["file"])


def distinct(sentences: Iterable[Sentence], seen: set[str]) -> list[Sentence]:
    """The sentences whose text, without case and spacing, is not in `seen`, which they join."""
    kept = []
    for sentence in sentences:
        text = " ".join(" ".join(sentence.words).lower().split())
        if text not in seen:
            seen.add(text)
            kept.append(sentence)
    return kept


def split(sentences: Sequence[Sentence], test: int) -> tuple[list[Sentence], list[Sentence]]:
    """Train and test sentences of a domain: `test` of them, from documents that are not trained on; both shuffled.

    Drawn by one fixed seed: the split is part of the data, as the order of training is not.
    """
    order, sizes = random.Random(0), Counter(s.document for s in sentences)
    documents = sorted(sizes)
    order.shuffle(documents)
    count, tested = 0, set()
    for document in documents:
        if count >= test:
            break
        tested.add(document)
        count += sizes[document]
    train = [s for s in sentences if s.document not in tested]
    held = [s for s in sentences if s.document in tested]
    order.shuffle(train)
    order.shuffle(held)
    return train, held[:test]


@cache
def load(task: str, test: int) -> dict[str, tuple[list[Sentence], list[Sentence]]]:
    """Train and test sentences of every domain of a task."""
    fetch(task)
    seen: set[str] = set()
    domains = (*TASKS[task].domains, *TASKS[task].held_out)
    return {domain: split(distinct(read(task, domain), seen), test) for domain in domains}


@cache
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    fetch("minilm")
    return AutoTokenizer.from_pretrained(BASE)


@dataclass(frozen=True)
class Encoded:
    """A sentence as a model reads it: `labels` is one class, or one per piece (-100: not the first of its word)."""

    ids: tuple[int, ...]
    labels: tuple[int, ...]


def encode(task: Task, sentences: Sequence[Sentence], length: int) -> list[Encoded]:
    """Word pieces and labels, cut to `length`; a sentence without a labelled piece is left out."""
    rows = []
    for sentence in sentences:
        if not task.tokens:
            ids = tokenizer()(sentence.words[0], truncation=True, max_length=length)["input_ids"]
            rows.append(Encoded(tuple(ids), sentence.labels))
            continue
        pieces = tokenizer()(list(sentence.words), is_split_into_words=True, truncation=True, max_length=length)
        labels, before = [], None
        for word in pieces.word_ids():  # of every piece; None for the ends of the sentence
            labels.append(IGNORED if word is None or word == before else sentence.labels[word])
            before = word
        if any(label != IGNORED for label in labels):
            rows.append(Encoded(tuple(pieces["input_ids"]), tuple(labels)))
    return rows


def padded(task: Task, sentences: Sequence[Encoded], pad: int = 0) -> dict[str, Tensor]:
    """Tensors of sentences, padded on the right to the longest: ids, mask and labels, int64.

    `pad` is the id of padding; BERT's is 0. No position attends to it.
    """
    longest = max(len(s.ids) for s in sentences)

    def fill(rows: Iterable[Sequence[int]], filler: int) -> Tensor:
        return torch.tensor([[*row, *[filler] * (longest - len(row))] for row in rows])

    labels = [s.labels for s in sentences]
    return {
        "input_ids": fill([s.ids for s in sentences], pad),
        "attention_mask": fill([[1] * len(s.ids) for s in sentences], 0),
        "labels": fill(labels, IGNORED) if task.tokens else torch.tensor([row[0] for row in labels]),
    }


def batches(lengths: Sequence[int], size: int, order: random.Random) -> list[list[int]]:
    """Indices of all sentences in batches of near lengths, in random order."""
    shuffled = list(range(len(lengths)))
    order.shuffle(shuffled)
    pool, every = 16 * size, []
    for start in range(0, len(shuffled), pool):
        near = sorted(shuffled[start : start + pool], key=lambda i: lengths[i])
        every += [near[i : i + size] for i in range(0, len(near), size)]
    order.shuffle(every)
    return every
