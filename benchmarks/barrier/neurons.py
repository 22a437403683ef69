"""What of the barrier is neurons without a partner: they are kept apart, in a merged model with a wider MLP.

    python benchmarks/barrier/neurons.py vit-digits --row distilled-quick      # as run.py names rows; writes results/barrier/neurons.json
    python benchmarks/barrier/neurons.py llama --row activations --learn 300    # and learned once more in the wider architecture

The second model is aligned onto the first as in a row of `run.py`. The middle of the line is built anew: of every
layer the pairs of neurons that lie farthest apart, an eighth of them to all, stand side by side, each with half of its
output, and all else is averaged. Where all stand apart the MLPs are no longer merged: it is the mean of what they
compute, and what is left of the barrier then comes from the rest. The merged model is a checkpoint of the same
architecture with a larger ``intermediate_size``.

With ``--learn N`` both models are first widened by neurons that do nothing, each beside a neuron of the other that
is to stand apart: the same functions, in an architecture where these need no partner. Everything but the order of neurons is
then learned in N steps as in the benchmark: what is left is what neurons without a partner do not explain.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import AutoConfig

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import isomerge
from benchmarks.barrier.run import (
    DATA,
    IMAGES,
    LIMITS,
    RESULTS,
    align,
    folder_of,
    learning,
    named,
    test_data,
    train_data,
)

SHARES = (0.0, 0.125, 0.25, 0.5, 1.0)
CLASSES = {"vit": "AutoModelForImageClassification"}
"""What reads a family's models; the others are language models."""


def layers_of(module: Any) -> list[tuple[list[Any], Any]]:
    """Of every layer the linear maps into its neurons, and the one out of them."""
    from torch import nn

    found = []
    size = module.config.intermediate_size
    linears = [(name, one) for name, one in module.named_modules() if isinstance(one, nn.Linear)]
    into: list[Any] = []
    for _, one in linears:
        if one.out_features == size and one.in_features != size:
            into.append(one)
        elif one.in_features == size:
            found.append((into, one))
            into = []
    return found


def farthest(a: tuple[list[Any], Any], b: tuple[list[Any], Any], count: int) -> Tensor:
    """The pairs of a layer's neurons that are farthest apart, as a share of their size."""
    sides = []
    for into, out in (a, b):
        rows = [one.weight for one in into] + [one.bias[:, None] for one in into if one.bias is not None]
        sides.append(torch.cat([*rows, out.weight.mT], 1).double())
    one, two = sides
    apart = (one - two).square().sum(1) / (one.square().sum(1) + two.square().sum(1))
    return apart.argsort(descending=True)[:count].sort().values


def middle(a: Any, b: Any, share: float) -> Any:
    """The mean of two models, with a share of every layer's neurons side by side."""
    size = a.config.intermediate_size
    count = round(share * size)
    config = AutoConfig.for_model(**{**a.config.to_dict(), "intermediate_size": size + count})
    found = type(a)(config)
    mean = {name: (x.double() + b.state_dict()[name].double()) / 2 for name, x in a.state_dict().items()}
    with torch.no_grad():
        own = found.state_dict()
        for name, x in mean.items():
            if own[name].shape == x.shape:
                own[name].copy_(x)
        for here, one, two in zip(*(layers_of(m) for m in (found, a, b)), strict=True):
            chosen = farthest(one, two, count)
            for new, x, y in zip(here[0], one[0], two[0], strict=True):
                for kind in ("weight", "bias"):
                    if getattr(x, kind) is not None:
                        rows = (getattr(x, kind) + getattr(y, kind)) / 2
                        rows[chosen] = getattr(x, kind)[chosen]
                        getattr(new, kind).copy_(torch.cat([rows, getattr(y, kind)[chosen]]))
            x, y = one[1], two[1]
            columns = (x.weight + y.weight) / 2
            columns[:, chosen] = x.weight[:, chosen] / 2
            here[1].weight.copy_(torch.cat([columns, y.weight[:, chosen] / 2], 1))
            if x.bias is not None:
                here[1].bias.copy_((x.bias + y.bias) / 2)
    return found.eval()


def beside(model: Any, out: Path, chosen: list[Tensor], *, moved: bool) -> Path:
    """A model with as many more neurons as are chosen of every layer, in a folder: they do nothing, or the chosen ones
    are moved there and leave such behind."""
    config = AutoConfig.for_model(
        **{**model.config.to_dict(), "intermediate_size": model.config.intermediate_size + len(chosen[0])}
    )
    found = type(model)(config)
    with torch.no_grad():
        own = found.state_dict()
        for name, x in model.state_dict().items():
            if own[name].shape == x.shape:
                own[name].copy_(x)
        for (into, back), (old_into, old_back), rows in zip(
            layers_of(found), layers_of(model), chosen, strict=True
        ):
            for new, old in zip(into, old_into, strict=True):
                for kind in ("weight", "bias"):
                    if (x := getattr(old, kind)) is not None:
                        getattr(new, kind).copy_(torch.cat([x, torch.zeros_like(x[rows])]))
                        _swap(getattr(new, kind), rows, len(x), moved)
            back.weight.copy_(torch.cat([old_back.weight, torch.zeros_like(old_back.weight[:, rows])], 1))
            _swap(back.weight.mT, rows, old_back.weight.shape[1], moved)
    found.eval().save_pretrained(out)
    return out


def _swap(x: Tensor, rows: Tensor, end: int, moved: bool) -> None:
    """The chosen rows in place of the last ones, which are zero, and these in theirs."""
    if moved:
        x[end:] = x[rows]
        x[rows] = 0


def learned_apart(family: str, pair: str, one: Any, two: Any, share: float, steps: int) -> Any:
    """The middle's score where a share of the neurons stand apart and everything else is learned."""
    count = round(share * one.config.intermediate_size)
    chosen = [farthest(a, b, count) for a, b in zip(layers_of(one), layers_of(two), strict=True)]
    places = [DATA / "neurons" / f"{family}-{pair}-{share}-{name}" for name in ("first", "second", "learned")]
    beside(one, places[0], chosen, moved=False)
    beside(two, places[1], chosen, moved=True)
    how = {**learning(family, None), "steps": steps, "learn_target": "distill" if family in IMAGES else "labels"}
    isomerge.align(
        places[1], onto=places[0], out=places[2], align=True, overwrite=True, spaces="attention,bias,res", seed=0,
        learn=train_data(family), limit=LIMITS[family]["learn"], **how,
    )  # fmt: skip
    line = isomerge.barrier(
        places[0], places[2], data=test_data(family), spaces="none", points=11, limit=LIMITS[family]["test"],
        batch_size=128,
    )["lines"][0]  # fmt: skip
    return {**line["midpoint"], "barrier": line["barrier"]["entezari"]}


def scored(family: str, folder: Path) -> Any:
    """Loss and accuracy on test data."""
    found = isomerge.evaluate([folder], data=test_data(family), limit=LIMITS[family]["test"], batch_size=128)
    return {key: found["models"][0][key] for key in ("loss", "accuracy")}


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("family", choices=sorted(LIMITS))
    parser.add_argument("--pairs", nargs="*", default=["0-1"])
    parser.add_argument("--row", default="distilled-quick")
    parser.add_argument("--learn", type=int, help="steps that are learned in the wider architecture")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    path = RESULTS / "neurons.json"
    results: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    here = results.setdefault(f"{named(asked.family, None, False)}, {asked.row}", {})
    for pair in asked.pairs:
        rows = here.setdefault(pair, {})
        wanted = f"learned, {asked.learn} steps" if asked.learn else "middle"
        if len(rows.get(wanted, {})) == len(SHARES):
            continue
        a, b = (folder_of(asked.family, seed, None, False) for seed in pair.split("-"))
        aligned, _ = align(asked.row, asked.family, a, b, None, seed=0)
        auto = getattr(transformers, CLASSES.get(asked.family.partition("-")[0], "AutoModelForCausalLM"))
        one, two = (auto.from_pretrained(folder).eval() for folder in (a, aligned))
        for share in (s for s in SHARES if str(s) not in rows.get(wanted, {})):
            if asked.learn:
                found = learned_apart(asked.family, pair, one, two, share, asked.learn)
            else:
                out = DATA / "neurons" / f"{asked.family}-{pair}-{share}"
                middle(one, two, share).save_pretrained(out)
                found = scored(asked.family, out)
            rows.setdefault(wanted, {})[str(share)] = found
            rows["ends"] = [scored(asked.family, end) for end in (a, b)]
            print(asked.family, pair, wanted, share, found, flush=True)
            path.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
