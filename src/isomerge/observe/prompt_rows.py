"""The rows of a router: which direction of the residual stream goes to which expert, from prompts that are typical
of each.

As mergekit-moe has it (github.com/arcee-ai/mergekit, mergekit/moe/router.py): a row is the mean over an expert's
positive prompts of what stands in the stream in front of a layer, less the same of its negative prompts, at length
one. Prompts are run one by one, so that no padding takes part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

import torch
from torch import Tensor

from isomerge.checkpoint.tokenizer import load_tokenizer
from isomerge.config.widths import TOKENS
from isomerge.errors import IsomergeError
from isomerge.models.recognised import Model
from isomerge.observe.live.modules import load_module
from isomerge.progress import Observer, quiet

RUNS = ("hidden", "hidden_avg", "hidden_last")
"""Ways that run the base model: `hidden` looks at a prompt's last token, as `hidden_last` does, `hidden_avg` at the
mean over its tokens."""
READS = (*RUNS, "cheap_embed")
"""Ways that need prompts; `cheap_embed` takes the sum of their tokens' embeddings, for all layers."""
DRAWS = ("random", "uniform_random")
"""Ways that draw: of the normal distribution, or as torch begins a linear layer."""
WAYS = (*READS, *DRAWS)
DEGENERATE = 5.0
"""Condition number of a layer's rows from which on mergekit tells that they are too alike."""
SHORTEST = 1e-8
"""Rows are divided by no less."""


@dataclass(frozen=True)
class Prompts:
    """What is typical of one expert, and what is not."""

    positive: tuple[str, ...]
    negative: tuple[str, ...] = ()


def drawn_rows(way: str, layers: int, experts: int, width: int, seed: int) -> Tensor:
    """Rows that are drawn, float32 [layers, experts, width]: mergekit's numbers at the same seed."""
    rng = torch.Generator().manual_seed(seed)
    if way == "random":
        return torch.randn((layers, experts, width), generator=rng)
    reach = sqrt(1 / width)
    return torch.rand((layers, experts, width), generator=rng) * 2 * reach - reach


def prompt_rows(
    base: Model,
    way: str,
    prompts: Sequence[Prompts],
    layers: int,
    *,
    device: str = "cpu",
    observer: Observer = quiet,
) -> Tensor:
    """The rows that prompts say, float32 [layers, experts, width].

    Args:
        base: the model whose stream the router will read.
        way: one of `READS`.
        prompts: of every expert.
        layers: how many the model has.
        device: where it is run.
        observer: told of progress.

    Raises:
        IsomergeError: no tokenizer, or a prompt without tokens.
    """
    tokens = tokenised(base, prompts)
    seen = _embedded(base, layers) if way == "cheap_embed" else _hidden(base, way, layers, device)
    rows = []
    for number, (positive, negative) in enumerate(tokens):
        observer("prompts of experts", number, len(tokens))
        row = seen(positive)
        if negative:
            row = row - seen(negative)
        rows.append(_of_length_one(row))
    return torch.stack(rows, dim=1)


def tokenised(base: Model, prompts: Sequence[Prompts]) -> list[tuple[list[list[int]], list[list[int]]]]:
    """The ids of every expert's positive and negative prompts, with the token that begins a text, and no other
    special ones.

    Raises:
        IsomergeError: no tokenizer, or a prompt without tokens.
    """
    tokenizer: Any = load_tokenizer(base.checkpoint)

    def ids(text: str) -> list[int]:
        tokens = tokenizer((tokenizer.bos_token or "") + text, add_special_tokens=False)["input_ids"]
        if not tokens:
            raise IsomergeError(f"the prompt {text!r} has no tokens: give a text, or leave it out")
        return list(tokens)

    return [([ids(text) for text in each.positive], [ids(text) for text in each.negative]) for each in prompts]


def condition_numbers(rows: Tensor) -> list[float]:
    """The condition number of every layer's rows: how alike they are.

    Args:
        rows: [layers, experts, width].
    """
    return [float(torch.linalg.cond(layer.double())) for layer in rows]


def _of_length_one(rows: Tensor) -> Tensor:
    return rows / rows.norm(dim=-1, keepdim=True).clamp(min=SHORTEST)


def _embedded(base: Model, layers: int) -> Callable[[list[list[int]]], Tensor]:
    """The sum of embeddings over all tokens, at length one: [layers, width]."""
    table = base.read(_table(base), torch.float32)

    def seen(texts: list[list[int]]) -> Tensor:
        every = [token for text in texts for token in text]
        if max(every) >= len(table):
            raise IsomergeError(
                f"{base.ref}: its tokenizer gives the token {max(every)}, and its embeddings have {len(table)} "
                f"rows: it is another model's tokenizer"
            )
        return _of_length_one(table[torch.tensor(every)].sum(0)).expand(layers, -1)

    return seen


def _table(base: Model) -> str:
    """The table of embeddings: what reads tokens and writes to the stream."""
    for name, match in base.matches.items():
        axes = match.line.atoms
        writes = any(atom.name in base.declared.streams and not (atom.dual or atom.diag) for atom in axes)
        if writes and any(atom.name == TOKENS[0] for atom in axes):
            return name
    raise IsomergeError(f"{base.ref} has no table of embeddings: choose another `gate_mode`")


def _hidden(base: Model, way: str, layers: int, device: str) -> Callable[[list[list[int]]], Tensor]:
    """The mean over prompts of what stands in the stream in front of every layer: [layers, width]."""
    module = load_module(base, device=device)

    def seen(texts: list[list[int]]) -> Tensor:
        means = []
        for text in texts:
            with torch.no_grad():
                ids = torch.tensor([text], device=device)
                states = module(input_ids=ids, output_hidden_states=True, use_cache=False).hidden_states[:layers]
            every = torch.stack([state[0] for state in states]).float().cpu()
            means.append(every.mean(1) if way == "hidden_avg" else every[:, -1])
        return torch.stack(means).mean(0)

    return seen
