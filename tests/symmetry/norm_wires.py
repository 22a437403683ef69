"""Wires of norms: who writes what they normalise, and who reads them."""

from __future__ import annotations

import torch
from torch import Tensor

from isomerge.symmetry.moves import BETWEEN, FOLD, GAIN, MADE, ONES, SCALE, TIED
from isomerge.symmetry.unheard import UNHEARD
from symmetry.wires import (
    ATTENTION,
    EMBEDDED,
    HEADS,
    LABELS,
    LAYERS,
    NEURONS,
    OF_HEADS,
    PERCEPTRON,
    STREAM,
    Sizes,
    Weights,
    Wire,
    attended,
    attention,
    linear,
    normed,
    standard,
)


def norms_before(w: Weights, n: Sizes) -> Tensor:
    """A decoder's layers, and its head."""
    x = w["embed.weight"]
    for layer in range(LAYERS):
        at = f"layer.{layer}"
        x = x + attention(w, at, normed(w, f"{at}.n1norm", x, less=1), n["h"])
        y = linear(w, f"{at}.down", linear(w, f"{at}.up", normed(w, f"{at}.n2norm", x)).tanh())
        x = x + w[f"{at}.gamma"] * y
    return linear(w, "head", normed(w, "norm", x))


def norms_of_ones(w: Weights, n: Sizes) -> Tensor:
    """The same with norms that have no tensors, once."""
    x = w["embed.weight"]
    x = x + linear(w, "down", linear(w, "up", standard(x)).tanh())
    return linear(w, "head", standard(x))


def fused(w: Weights, n: Sizes) -> Tensor:
    """Queries, keys and values in one map, of which keys have no bias."""
    x, h = w["embed.weight"], n["h"]
    for layer in range(LAYERS):
        at = f"layer.{layer}"
        qkv = normed(w, f"{at}.n1norm", x) @ w[f"{at}.qkv.weight"].mT
        q, k, v = qkv.split([h * n["qk"], h * n["qk"], h * n["ov"]], -1)
        x = x + linear(w, f"{at}.o", attended(q + w[f"{at}.q_bias"], k, v + w[f"{at}.v_bias"], h))
    return linear(w, "head", normed(w, "norm", x))


def sliced(w: Weights, n: Sizes) -> Tensor:
    """Neurons in groups, each of which reads its slice of what a norm gives."""
    x = normed(w, "norm", w["embed.weight"])
    for layer in range(LAYERS):
        at = f"layer.{layer}"
        rows = w[f"{at}.up.weight"].unflatten(0, (n["groups"], -1)).squeeze(-1)
        up = torch.einsum("tgp,gfp->tgf", x.unflatten(-1, (n["groups"], -1)), rows).flatten(1) + w[f"{at}.up.bias"]
        x = normed(w, f"{at}.norm", x + linear(w, f"{at}.down", up.tanh()))
    return linear(w, "score", x)


def tiled(w: Weights, n: Sizes) -> Tensor:
    """A convolution whose windows tile what a norm gives, and one that reads zeros beside it."""
    x = normed(w, "norm", w["embed.weight"])
    windows = x.unflatten(0, (-1, n["window"])).transpose(1, 2)
    tiles = torch.einsum("brw,lrw->bl", windows, w["tile.weight"]) + w["tile.bias"]
    filled = torch.cat([linear(w, "fill", x), w["fill.bias"].expand(1, -1)])
    return torch.cat([tiles.tanh(), filled.tanh()])


def half_normed(w: Weights, n: Sizes) -> Tensor:
    """One map of which some rows read what a norm gives, and others a constant."""
    x, own = normed(w, "norm", w["embed.weight"]), w["token.weight"]
    rows, bias = (w[f"both.{name}"].split([n["labels"], n["ff"]]) for name in ("weight", "bias"))
    return torch.cat([(own @ rows[0].mT + bias[0]).tanh().flatten(), (x @ rows[1].mT + bias[1]).tanh().flatten()])


def two_streams(w: Weights, n: Sizes) -> Tensor:
    """One stream, normed, written into another."""
    y = linear(w, "map", normed(w, "in_norm", w["embed.weight"]))
    return linear(w, "head", normed(w, "out_norm", w["beside.weight"] + y))


def norms_behind(w: Weights, n: Sizes) -> Tensor:
    """An encoder's layers, and its labels."""
    x = normed(w, "norm", w["embed.weight"] + w["types.weight"][0])
    for layer in range(LAYERS):
        at = f"layer.{layer}"
        x = normed(w, f"{at}.n1norm", x + attention(w, at, x, n["h"]))
        x = normed(w, f"{at}.n2norm", x + linear(w, f"{at}.down", linear(w, f"{at}.up", x).tanh()))
    return linear(w, "score", x)


def tied_head(w: Weights, n: Sizes) -> Tensor:
    """The same with the table of embeddings as its head."""
    x = normed(w, "norm", w["embed.weight"] + w["types.weight"][0])
    for layer in range(LAYERS):
        at = f"layer.{layer}"
        x = normed(w, f"{at}.norm", x + linear(w, f"{at}.down", linear(w, f"{at}.up", x).tanh()))
    x = normed(w, "cls.norm", linear(w, "cls.dense", x).tanh())
    return x @ w["embed.weight"].mT + w["cls.bias"]


def passed_values(w: Weights, n: Sizes) -> Tensor:
    """Norms behind attention without biases, of which queries, keys and values are one map."""
    x, h = normed(w, "norm", w["embed.weight"]), n["h"]
    for layer in range(LAYERS):
        at = f"layer.{layer}"
        qkv = linear(w, f"{at}.qkv", x).split([h * n["qk"], h * n["qk"], h * n["ov"]], -1)
        x = normed(w, f"{at}.norm", x + linear(w, f"{at}.o", attended(*qkv, h)))
    return linear(w, "score", x)


def muted_values(w: Weights, n: Sizes) -> Tensor:
    """Norms before attention whose values alone have a bias."""
    x = w["embed.weight"]
    for layer in range(LAYERS):
        at = f"layer.{layer}"
        x = x + attention(w, at, normed(w, f"{at}.n1norm", x), n["h"])
    return linear(w, "head", normed(w, "norm", x))


NORM_WIRES = [
    Wire(
        "norms before",
        """
        residual res: Perm folded OFixingOnes
        residual n1: Scale[l, res]
        residual n2: Scale[l, res]
        residual s1: Scale[l, res]
        residual nf: Scale[res]
        """
        + OF_HEADS
        + """
        embed.weight             vocab res
        layer.{l}.n1norm.weight  diag(res n1) - 1
        layer.{l}.n1norm.bias    (res n1)
        """
        + ATTENTION.replace("res'", "(res n1)'")
        + """
        layer.{l}.n2norm.*       diag(res n2)
        layer.{l}.up.*           ff (res n2)'
        layer.{l}.down.*         (res s1) ff'
        layer.{l}.gamma          diag(res s1')
        norm.*                   diag(res nf)
        head.weight              labels (res nf)'
        """,
        norms_before,
        STREAM | HEADS | NEURONS | LABELS,
        (ONES, GAIN, FOLD, MADE),
        bare=("k.bias", "v.bias"),
    ),
    Wire(
        "norms of ones",
        """
        residual res: Perm folded OFixingOnes
        prenorm res plain
        embed.weight  vocab res
        up.*          ff res'
        down.*        res ff'
        head.*        labels res'
        """,
        norms_of_ones,
        STREAM | NEURONS | LABELS,
        (ONES, GAIN),
    ),
    Wire(
        "fused readers",
        """
        residual res: Perm folded OFixingOnes
        residual n1: Scale[l, res]
        residual nf: Scale[res]
        space h: Perm[l]
        space qk: GL[l, h]
        space ov: GL[l, h]
        shift vb: layer.{l}.v_bias -> layer.{l}.o.bias via layer.{l}.o.weight
        biased layer.{l}.qkv.weight#0 by layer.{l}.q_bias
        biased layer.{l}.qkv.weight#2 by layer.{l}.v_bias
        embed.weight          vocab res
        layer.{l}.n1norm.*    diag(res n1)
        layer.{l}.qkv.weight  [h qk | h qk' | h ov] (res n1)'
        layer.{l}.q_bias      (h qk)
        layer.{l}.v_bias      (h ov)
        layer.{l}.o.*         res (h ov')
        norm.*                diag(res nf)
        head.*                labels (res nf)'
        """,
        fused,
        STREAM | HEADS | LABELS,
        (ONES, GAIN, FOLD),
    ),
    Wire(
        "readers of slices",
        """
        residual res: Fixed
        postnorm res sliced up.*
        """
        + EMBEDDED
        + """
        layer.{l}.up.*    (groups ff) part 1
        layer.{l}.down.*  res (groups ff)
        layer.{l}.norm.*  res
        score.*           labels res'
        """,
        sliced,
        {"res": (6, 6), "vocab": (4, 7), "groups": (3, 3), "part": (2, 2)} | NEURONS | LABELS,
        (ONES, FOLD, SCALE),
    ),
    Wire(
        "readers of windows",
        """
        residual res: Perm folded OFixingOnes
        prenorm res padded fill.weight tiled tile.weight
        residual nf: Scale[res]
        embed.weight  vocab res
        norm.*        diag(res nf)
        tile.*        labels (res nf)' window
        fill.*        labels (res nf)'
        """,
        tiled,
        {"res": (3, 6), "vocab": (6, 6), "window": (2, 3)} | LABELS,
        (ONES, GAIN, FOLD),
    ),
    Wire(
        "rows that read something else",
        """
        residual res: Perm folded OFixingOnes
        prenorm res except both.weight#0 token.weight
        residual nf: Scale[res]
        embed.weight  vocab res
        token.weight  1 (res nf)
        norm.*        diag(res nf)
        both.*        [labels | ff] (res nf)'
        """,
        half_normed,
        STREAM | NEURONS | LABELS,
        (ONES, GAIN, FOLD),
    ),
    Wire(
        "two streams",
        """
        residual a: Perm folded OFixingOnes
        residual b: Perm folded OFixingOnes
        residual na: Scale[a]
        residual nb: Scale[b]
        embed.weight   vocab a
        in_norm.*      diag(a na)
        map.*          b (a na)'
        beside.weight  vocab b
        out_norm.*     diag(b nb)
        head.*         labels (b nb)'
        """,
        two_streams,
        {"a": (3, 6), "b": (3, 6), "vocab": (4, 7)} | LABELS,
        (ONES, BETWEEN, GAIN, FOLD),
    ),
    Wire(
        "norms behind",
        """
        residual res: Perm
        postnorm res
        """
        + OF_HEADS
        + EMBEDDED.replace("norm.", "types.weight types res\nnorm.")
        + ATTENTION
        + "layer.{l}.n1norm.* res\n"
        + PERCEPTRON
        + """
        layer.{l}.n2norm.*  res
        score.*             labels res'
        """,
        norms_behind,
        STREAM | HEADS | NEURONS | LABELS | {"types": (1, 2)},
        (ONES, GAIN, FOLD, SCALE),
        anything=("k.bias",),
    ),
    Wire(
        "norms behind, level",
        """
        residual res: Perm
        postnorm res
        """
        + EMBEDDED.replace("norm.", "types.weight types res\nnorm.")
        + PERCEPTRON
        + """
        layer.{l}.norm.*  res
        cls.dense.*       res res'
        cls.norm.*        res
        cls.out.weight    vocab res' = embed.weight
        cls.out.bias      vocab = cls.bias
        cls.bias          vocab
        shift wt: embed.weight along vocab -> types.weight along types
        shift wg: embed.weight along vocab -> types.weight along types against cls.norm.weight
        """,
        tied_head,
        STREAM | NEURONS | {"types": (1, 2)},
        (ONES, GAIN, FOLD, TIED),
        bare=("down.bias",),
    ),
    Wire(
        "values that pass on",
        """
        residual res: Perm
        postnorm res
        space h: Perm[l]
        space qk: GL[l, h]
        space ov: GL[l, h]
        unheard vo: layer.{l}.qkv.weight#2 by layer.{l}.qkv.bias#2 through layer.{l}.o.weight
        """
        + EMBEDDED
        + """
        layer.{l}.qkv.*   [h qk | h qk' | h ov] res'
        layer.{l}.o.*     res (h ov')
        layer.{l}.norm.*  res
        score.*           labels res'
        """,
        passed_values,
        {"res": (3, 5), "vocab": (4, 7), "h": (3, 4), "qk": (1, 2), "ov": (2, 2)} | LABELS,
        (ONES, FOLD, UNHEARD, SCALE),
        bare=("qkv.bias", "o.bias"),
    ),
    Wire(
        "values that are not heard",
        """
        residual res: Perm folded OFixingOnes
        residual n1: Scale[l, res]
        residual nf: Scale[res]
        space h: Perm[l]
        space qk: GL[l, h]
        space ov: GL[l, h]
        unheard vo: layer.{l}.v.weight by layer.{l}.v.bias behind layer.{l}.n1norm.weight through layer.{l}.o.weight
        embed.weight        vocab res
        layer.{l}.n1norm.*  diag(res n1)
        """
        + ATTENTION.replace("res'", "(res n1)'")
        + """
        norm.*              diag(res nf)
        head.*              labels (res nf)'
        """,
        muted_values,
        {"res": (3, 5), "vocab": (4, 7), "h": (3, 4), "qk": (1, 2), "ov": (2, 2)} | LABELS,
        (ONES, GAIN, FOLD, UNHEARD),
        bare=("q.bias", "k.bias", "o.bias"),
    ),
]
