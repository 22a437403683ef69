"""The two tasks: sentiment of VADER's four domains, and parts of speech of the Brown corpus by genre.

**Sentiment.** The mean of some twenty human ratings, from -4 to 4, in three classes: negative below -0.8, positive
above 0.8, neutral between. One scale for all domains, as a merged model must mean the same thing everywhere; at 0.8
the rarest class of a domain is a tenth of it (movie reviews have few neutral snippets, editorials few positive
ones), so that macro F1 rests on more than a handful.

**Splits.** Whole documents (an article, a review, a file of Brown) are either tested on or trained on, in the same
way for all seeds. A text that occurs again, in its domain or in another, is left out.
"""

from __future__ import annotations

import html
import json
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from benchmarks.fetch import DATA, fetch
from benchmarks.paper.text.settings import BASE
from benchmarks.paper.text.tags import TAGS, universal
from isomerge.observe.data.examples import IGNORED, Examples

if TYPE_CHECKING:
    import torch

NEUTRAL = 0.8
SENTIMENTS = ("negative", "neutral", "positive")


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
class Sentence:
    """A text, or its words, with one label, or one per word; and the document it is from."""

    words: tuple[str, ...]
    labels: tuple[int, ...]
    document: str


def sentiment(score: float) -> int:
    """The class of a mean human rating."""
    return 0 if score < -NEUTRAL else 2 if score > NEUTRAL else 1


def _vader(domain: str) -> Iterator[Sentence]:
    """All snippets of a domain; where ids are `document_sentence`, the document is known."""
    for line in (DATA / "vader" / f"{domain}.jsonl").open(encoding="utf-8"):
        row = json.loads(line)
        yield Sentence((html.unescape(row["text"]),), (sentiment(row["score"]),), row["id"].split("_")[0])


def _brown(genre: str) -> Iterator[Sentence]:
    """All sentences of a genre."""
    for line in (DATA / "brown" / f"{genre}.jsonl").open(encoding="utf-8"):
        row = json.loads(line)
        yield Sentence(tuple(row["words"]), tuple(TAGS.index(universal(t)) for t in row["tags"]), row["file"])


def distinct(sentences: Iterator[Sentence], seen: set[str]) -> list[Sentence]:
    """The sentences whose text, without case and spacing, is not in `seen`, which they join."""
    found = []
    for sentence in sentences:
        text = " ".join(" ".join(sentence.words).lower().split())
        if text not in seen:
            seen.add(text)
            found.append(sentence)
    return found


def split(sentences: Sequence[Sentence], test: int) -> tuple[list[Sentence], list[Sentence]]:
    """Train and test sentences of a domain: `test` of them, from documents that are not trained on; both shuffled.

    Drawn by one fixed seed: the split is part of the data, as the order of training is not.
    """
    order = random.Random(0)
    documents = sorted({s.document for s in sentences})
    order.shuffle(documents)
    count, tested = 0, set()
    size = dict.fromkeys(documents, 0)
    for sentence in sentences:
        size[sentence.document] += 1
    for document in documents:
        if count >= test:
            break
        tested.add(document)
        count += size[document]
    train = [s for s in sentences if s.document not in tested]
    held = [s for s in sentences if s.document in tested]
    order.shuffle(train)
    order.shuffle(held)
    return train, held[:test]


@lru_cache(maxsize=4)
def load(task: str, test: int) -> dict[str, tuple[list[Sentence], list[Sentence]]]:
    """Train and test sentences of every domain of a task."""
    fetch(task)
    read, seen = {"vader": _vader, "brown": _brown}[task], set[str]()
    found = TASKS[task]
    return {d: split(distinct(read(d), seen), test) for d in (*found.domains, *found.held_out)}


@lru_cache(maxsize=1)
def tokenizer() -> Any:
    """MiniLM's own."""
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
    found = []
    for sentence in sentences:
        if not task.tokens:
            ids = tokenizer()(sentence.words[0], truncation=True, max_length=length)["input_ids"]
            found.append(Encoded(tuple(ids), sentence.labels))
            continue
        pieces = tokenizer()(list(sentence.words), is_split_into_words=True, truncation=True, max_length=length)
        labels, before = [], None
        for word in pieces.word_ids():  # of every piece; None for the ends of the sentence
            labels.append(IGNORED if word is None or word == before else sentence.labels[word])
            before = word
        if any(label != IGNORED for label in labels):
            found.append(Encoded(tuple(pieces["input_ids"]), tuple(labels)))
    return found


def padded(task: Task, sentences: Sequence[Encoded], pad: int = 0) -> dict[str, torch.Tensor]:
    """Tensors of sentences, padded on the right to the longest: ids, mask and labels, int64.

    `pad` is the id of padding; BERT's is 0. No position attends to it.
    """
    import torch

    longest = max(len(s.ids) for s in sentences)

    def fill(rows: Iterable[Sequence[int]], value: int) -> torch.Tensor:
        return torch.tensor([[*row, *[value] * (longest - len(row))] for row in rows])

    labels = [s.labels for s in sentences]
    return {
        "input_ids": fill([s.ids for s in sentences], pad),
        "attention_mask": fill([[1] * len(s.ids) for s in sentences], 0),
        "labels": fill(labels, IGNORED) if task.tokens else torch.tensor([row[0] for row in labels]),
    }


def examples(task: Task, sentences: Sequence[Encoded], *, labelled: bool = True) -> Examples:
    """What `isomerge.stats` and `isomerge.merge` read."""
    tensors = padded(task, sentences)
    if not labelled:
        del tensors["labels"]
    return Examples(tensors, labelled)


def batches(lengths: Sequence[int], size: int, order: random.Random) -> list[list[int]]:
    """Indices of all sentences in batches of near lengths, in random order."""
    shuffled = list(range(len(lengths)))
    order.shuffle(shuffled)
    pool = 16 * size
    found = []
    for start in range(0, len(shuffled), pool):
        near = sorted(shuffled[start : start + pool], key=lambda i: lengths[i])
        found += [near[i : i + size] for i in range(0, len(near), size)]
    order.shuffle(found)
    return found
