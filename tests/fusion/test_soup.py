"""Greedy soup against brute force over its definition, and on live modules."""

from __future__ import annotations

import random
from itertools import permutations
from math import nan
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from isomerge.errors import IsomergeError
from isomerge.fusion.greedy_soup import chosen_greedily, make_soup
from isomerge.observe.data.examples import Examples
from isomerge.observe.live.modules import load_module
from isomerge.observe.live.parameter_places import put_mean
from isomerge.observe.losses import evaluate
from observe.test_statistics import examples_for
from solve.disguises import perturb, single


def is_greedy(chosen: tuple[int, ...], scores: list[float], table: dict[frozenset[int], float]) -> bool:
    """The definition, read off a finished soup: every candidate in turn is in it exactly if it did not hurt those
    before."""
    ranks = [sorted(range(len(scores)), key=lambda k: (-scores[k], k)).index(k) for k in range(len(scores))]
    if ranks[chosen[0]] != 0 or [ranks[k] for k in chosen] != sorted(ranks[k] for k in chosen):
        return False
    for k in range(len(scores)):
        before = frozenset(j for j in chosen if ranks[j] < ranks[k])
        if ranks[k] > 0 and (k in chosen) != (table[before | {k}] >= table[before]):
            return False
    return True


@given(st.integers(1, 5), st.integers(0, 10_000), st.integers(2, 40))
def test_against_every_possible_soup(count: int, seed: int, levels: int) -> None:
    """Of all orders of all subsets, exactly one is greedy; few levels make ties."""
    rng = random.Random(seed)
    subsets = {frozenset(p[:n]) for n in range(1, count + 1) for p in permutations(range(count))}
    table = {s: float(rng.randrange(levels)) for s in sorted(subsets, key=sorted)}
    scores = [table[frozenset([k])] for k in range(count)]
    asked: list[tuple[int, ...]] = []

    def evaluate_some(which: tuple[int, ...]) -> float:
        asked.append(which)
        return table[frozenset(which)]

    soup = chosen_greedily(scores, evaluate_some)
    possible = [p[:n] for n in range(1, count + 1) for p in permutations(range(count))]
    assert {p for p in possible if is_greedy(p, scores, table)} == {soup.chosen}
    assert soup.score == table[frozenset(soup.chosen)] >= max(scores)
    assert len(asked) == count - 1
    assert [t.candidate for t in soup.history] == sorted(range(count), key=lambda k: (-scores[k], k))
    assert tuple(t.candidate for t in soup.history if t.taken) == soup.chosen
    assert [t.score for t in soup.history[1:]] == [table[frozenset(which)] for which in asked]


def test_scores_that_are_no_numbers() -> None:
    """They come last and are never taken; without any other there is no soup."""
    soup = chosen_greedily([nan, 1.0, 2.0], lambda which: nan if 0 in which else 2.0)
    assert soup.chosen == (2, 1)
    assert [t.candidate for t in soup.history] == [2, 1, 0]
    assert not soup.history[-1].taken
    for scores in ([], [nan, nan]):
        with pytest.raises(IsomergeError, match="at least one candidate"):
            chosen_greedily(scores, lambda which: 0.0)


@pytest.mark.parametrize("metric", ["loss", "accuracy"])
def test_soup_of_modules(metric: str, tmp_path: Path) -> None:
    """Noisy copies of a labelled model: their average is better than each; a stranger stays out."""
    folder = single("vit", tmp_path / "m")
    modules = [load_module(perturb(folder, tmp_path / f"n{k}", 0.3, seed=k)) for k in range(3)]
    modules.insert(1, load_module(single("vit", tmp_path / "stranger", 9)))
    images = examples_for(folder, 200).tensors["pixel_values"]
    truth = load_module(folder)
    with torch.no_grad():
        labels = truth(pixel_values=images).logits.argmax(-1)
    examples = Examples({"pixel_values": images, "labels": labels}, True)
    states = [dict(m.named_parameters()) for m in modules]
    old = [{n: p.clone() for n, p in s.items()} for s in states]

    def value(which: tuple[int, ...]) -> float:
        put_mean(truth, [states[k] for k in which], [1 / len(which)] * len(which))
        found = evaluate(truth, examples)
        assert found.accuracy is not None
        return found.accuracy if metric == "accuracy" else -found.loss

    wanted = chosen_greedily([value((k,)) for k in range(4)], value)
    soup = make_soup(truth, states, examples, metric=metric)
    assert soup == wanted
    assert 1 not in soup.chosen
    assert len(soup.chosen) >= 2
    assert soup.score > max(value((k,)) for k in range(4))
    make_soup(truth, states, examples, metric=metric)
    for name, p in truth.named_parameters():
        mean = torch.stack([states[k][name].detach().double() for k in soup.chosen]).mean(0)
        assert torch.allclose(p.double(), mean, atol=1e-7), name
    assert all(torch.equal(s[n], o[n]) for s, o in zip(states, old, strict=True) for n in o)


def test_refusals(tmp_path: Path) -> None:
    """Metrics, candidates of another shape, data without labels."""
    folder = single("vit", tmp_path / "m")
    module, examples = load_module(folder), examples_for(folder, 4)
    state = dict(module.named_parameters())
    with pytest.raises(IsomergeError, match=r"metric bleu.*loss, accuracy"):
        make_soup(module, [state], examples, metric="bleu")
    with pytest.raises(IsomergeError, match=r"candidate 1: tensor classifier\.bias is missing"):
        make_soup(module, [state, {k: v for k, v in state.items() if k != "classifier.bias"}], examples)
    with pytest.raises(IsomergeError, match=r"classifier\.bias is of shape \[2\].*\[5\]"):
        make_soup(module, [{**state, "classifier.bias": torch.zeros(2)}], examples)
    with pytest.raises(IsomergeError, match="no labels"):
        make_soup(module, [state], examples)
    with pytest.raises(IsomergeError, match="at least one candidate"):
        make_soup(module, [], examples)
