"""Wires of single statements: constants that ask, narrow maps, heads that are normed, tables, lengths, carries, shifts."""

from __future__ import annotations

import torch
from torch import Tensor

from isomerge.symmetry.bases import BASIS
from isomerge.symmetry.carried import CARRY
from isomerge.symmetry.centred import CENTRED, OFFSET
from isomerge.symmetry.lengths import LENGTH
from isomerge.symmetry.moves import FOLD, GAIN, ONES
from isomerge.symmetry.probed import DROP, KEYS, QUERY, TOKEN, TURN
from isomerge.symmetry.reached import LEVELS, REACH
from symmetry.wires import (
    HEADS,
    LABELS,
    LAYERS,
    NEURONS,
    PERCEPTRON,
    STREAM,
    Sizes,
    Weights,
    Wire,
    attended,
    linear,
    normed,
    standard,
)


def pooled(w: Weights, n: Sizes) -> Tensor:
    """One constant asks what a norm gives."""
    x = normed(w, "norm", w["embed.weight"])
    q = linear(w, "query", w["token.weight"].reshape(1, -1))
    return linear(w, "out", attended(q, linear(w, "k", x), linear(w, "v", x), n["h"]))


def narrow(w: Weights, n: Sizes) -> Tensor:
    """Narrow embeddings, normed, and a map to where layers read."""
    x = linear(w, "map", normed(w, "norm", w["embed.weight"]))
    for layer in range(LAYERS):
        at = f"layer.{layer}"
        x = normed(w, f"{at}.norm", x + linear(w, f"{at}.down", linear(w, f"{at}.up", x).tanh()))
    return linear(w, "score", x)


def again(w: Weights, n: Sizes) -> Tensor:
    """The same, of one layer that runs three times."""
    x = linear(w, "map", normed(w, "norm", w["embed.weight"]))
    for _ in range(3):
        x = normed(w, "g.0.n1norm", x + linear(w, "g.0.down", linear(w, "g.0.up", x).tanh()))
        x = normed(w, "g.0.n2norm", x + linear(w, "g.0.out", linear(w, "g.0.in", x).tanh()))
    return linear(w, "score", x)


def normed_heads(w: Weights, n: Sizes) -> Tensor:
    """Queries and keys that are normed head by head."""
    x = w["embed.weight"]
    for layer in range(LAYERS):
        at, y = f"layer.{layer}", standard(x)
        rows = linear(w, f"{at}.qkv", y).unflatten(-1, (n["h"], -1))
        q, k, v = rows.split([n["pair"] + n["rest"], n["pair"] + n["rest"], n["ov"]], -1)
        q, k = (normed(w, f"{at}.{name}_norm", x).flatten(1) for name, x in (("q", q), ("k", k)))
        x = x + linear(w, f"{at}.o", attended(q, k, v.flatten(1), n["h"]))
    return linear(w, "head", standard(x))


def places(w: Weights, n: Sizes) -> Tensor:
    """Words that meet a table of relative positions."""
    x, table = w["embed.weight"], w["table"]
    for layer in range(LAYERS):
        at = f"layer.{layer}"
        x = x + ((x @ w[f"{at}.q.weight"].mT) @ (table @ w[f"{at}.p.weight"].mT).mT).softmax(-1) @ w[f"{at}.values"]
    return x


def stretched(w: Weights, n: Sizes) -> Tensor:
    """Weights of which the lengths of slices are stored, and one whose output is scaled."""
    v, g = w["conv.v"], w["conv.g"]
    x = w["embed.weight"] @ (g.reshape(1, -1) * v / v.norm(dim=0)).mT
    y = x @ w["copy.weight"].mT
    return y / y.square().mean(-1, keepdim=True).sqrt()


def placed(w: Weights, n: Sizes) -> Tensor:
    """Positions that the first layer reads as they are, and carries on."""
    x = w["embed.weight"] + w["pos.weight"][: n["vocab"]]
    for layer in range(LAYERS):
        at = f"layer.{layer}"
        x = normed(w, f"{at}.norm", x + linear(w, f"{at}.down", linear(w, f"{at}.up", x).tanh()))
    return linear(w, "score", x)


def carrying(w: Weights, n: Sizes) -> Tensor:
    """What is looked up twice, stands in some coordinates, is a number, or stands between layers."""
    x = w["embed.weight"] + w["sides.weight"][0] + w["sides.weight"][1] + w["types.weight"][0]
    x = x + torch.nn.functional.pad(w["half.weight"][1], (0, n["res"] - n["half"]))
    x = x + w["first.bias"] + w["second.bias"]
    for layer in range(LAYERS):
        at = f"layer.{layer}"
        x = x + linear(w, f"{at}.down", linear(w, f"{at}.up", standard(x)).tanh())
        x = x + w["mid"][layer] if layer < n["between"] else x
    return linear(w, "head", standard(x))


def shifting(w: Weights, n: Sizes) -> Tensor:
    """Words at their places, the first of which pads; heads that share values; a router; and a table of its own."""
    x = w["embed.weight"] + w["pos.weight"]
    x = torch.cat([x, w["mask"] + w["pos.weight"][1:2]])
    q, k, v = (linear(w, name, x).unflatten(-1, (n["kv"], -1)) for name in "qkv")
    k, v = (each.repeat_interleave(n["g"], 1).flatten(1) for each in (k, v))
    x = x + linear(w, "o", attended(q.flatten(1), k, v, n["kv"] * n["g"]))
    return linear(w, "router", x).softmax(-1) @ w["experts"] + linear(w, "read", w["table"]).tanh().sum(0)


STATEMENT_WIRES = [
    Wire(
        "a constant that asks",
        """
        residual res: Perm folded OFixingOnes
        prenorm res except query.weight token.weight
        residual nf: Scale[res]
        space h: Perm
        space qk: GL[h]
        shift kb: k.bias
        probe pq: token.weight through query.weight by query.bias -> k.weight by k.bias along qk
        embed.weight  vocab res
        norm.*        diag(res nf)
        token.weight  1 (res nf)
        query.*        (h qk) (res nf)'
        k.*           (h qk') (res nf)'
        v.*           (h ov) (res nf)'
        out.*         labels (h ov')
        """,
        pooled,
        STREAM | HEADS | LABELS | {"qk": (2, 3)},
        (TURN, TOKEN, QUERY, KEYS, DROP),
        anything=("k.bias",),
    ),
    Wire(
        "a narrow map",
        """
        residual emb: Perm
        residual res: Perm
        postnorm res
        postnorm emb
        reached nr: map.bias over map.weight behind norm.weight -> layer.{l:0}.up.weight by layer.{l:0}.up.bias
        embed.weight      vocab emb
        norm.*            emb
        map.*             res emb'
        """
        + PERCEPTRON
        + """
        layer.{l}.norm.*  res
        score.*           labels res'
        """,
        narrow,
        {"emb": (3, 4), "res": (5, 7), "vocab": (4, 7)} | NEURONS | LABELS,
        (ONES, FOLD, LEVELS, REACH),
    ),
    Wire(
        "a layer that runs again",
        """
        residual emb: Perm
        residual res: Perm
        postnorm res again
        postnorm emb
        reached rr: map.bias over map.weight behind norm.weight then g.{g}.n2norm.weight -> g.{g}.up.weight by g.{g}.up.bias
        embed.weight    vocab emb
        norm.*          emb
        map.*           res emb'
        g.{g}.up.*      ff res'
        g.{g}.down.*    res ff'
        g.{g}.n1norm.*  res
        g.{g}.in.*      ff res'
        g.{g}.out.*     res ff'
        g.{g}.n2norm.*  res
        score.*         labels res'
        """,
        again,
        {"emb": (3, 4), "res": (5, 7), "vocab": (4, 7)} | NEURONS | LABELS,
        (ONES, GAIN, TURN),
        layers=1,
    ),
    Wire(
        "heads that are normed",
        """
        residual res: Perm folded OFixingOnes
        prenorm res plain
        space h: Perm[l]
        space ov: GL[l, h]
        centred qn: layer.{l}.qkv.weight#0,1, layer.{l}.qkv.bias#0,1 over pair rest
        centred kn: layer.{l}.qkv.weight#2,3, layer.{l}.qkv.bias#2,3 over pair rest
        embed.weight        vocab res
        layer.{l}.q_norm.*  [pair | rest]
        layer.{l}.k_norm.*  [pair | rest]
        layer.{l}.qkv.*     (h [pair | rest | pair | rest | ov]) res'
        layer.{l}.o.*       res (h ov')
        head.weight         labels res'
        """,
        normed_heads,
        STREAM | LABELS | {"h": (1, 3), "pair": (1, 2), "rest": (1, 2), "ov": (1, 3)},
        (CENTRED, OFFSET),
    ),
    Wire(
        "a table in any basis",
        """
        residual res: Fixed
        basis rb: table along b -> layer.{l}.p.weight
        embed.weight        vocab res
        table               places b
        layer.{l}.q.weight  ov res'
        layer.{l}.p.weight  ov b
        layer.{l}.values    places res
        """,
        places,
        STREAM | {"places": (5, 6), "b": (1, 4), "ov": (1, 3)},
        (BASIS,),
    ),
    Wire(
        "directions alone",
        """
        length cl: conv.v by conv.g along slice
        length out: copy.weight above 0.0001
        embed.weight  vocab slice
        conv.v        ff slice
        conv.g        1 slice
        copy.weight   labels ff
        """,
        stretched,
        {"vocab": (4, 7), "slice": (2, 4), "ff": (2, 4), "labels": (2, 3)},
        (LENGTH,),
    ),
    Wire(
        "positions that are carried",
        """
        residual res: Perm
        postnorm res
        carry pl: pos.weight along pos -> layer.{l:0}.up.bias via layer.{l:0}.up.weight, layer.{l:0}.down.bias
        carry pe: pos.weight along pos -> embed.weight along vocab
        embed.weight      vocab res
        pos.weight        pos res
        """
        + PERCEPTRON
        + """
        layer.{l}.norm.*  res
        score.*           labels res'
        """,
        placed,
        STREAM | NEURONS | LABELS | {"pos": (7, 7)},
        (CARRY,),
    ),
    Wire(
        "constants that are carried",
        """
        residual res: Fixed
        prenorm res plain
        carry xt: sides.weight along edge -> 2 types.weight along types
        carry hc: half.weight along edge -> types.weight along types over res[0:half]
        carry nb: first.bias along res -> second.bias along res
        carry mp: layer.{l:0..1}.down.bias -> mid along vocab at between
        embed.weight   vocab res
        sides.weight   edge res
        half.weight    edge half
        types.weight   types res
        first.bias     res
        second.bias    res
        mid            between vocab res
        head.weight    labels res'
        """
        + PERCEPTRON,
        carrying,
        {"res": (4, 6), "vocab": (4, 7), "edge": (2, 3), "half": (1, 3), "types": (1, 2), "between": (1, 1)}
        | NEURONS
        | LABELS,
        (CARRY,),
    ),
    Wire(
        "shifts",
        """
        residual res: Perm
        space kv: Perm
        space g: Perm[kv]
        space qk: GL[kv]
        space ov: GL[kv]
        space e: Perm
        space place: Perm
        shift kb: k.bias
        shift vb: v.bias -> o.bias via o.weight
        shift wp: embed.weight along vocab[1:] -> pos.weight along pos[1:] with mask
        shift pw: embed.weight along vocab[0:1] -> pos.weight along pos[0:1]
        shift rw: router.weight along e
        shift rb: router.bias along e
        shift tb: table along place -> read.bias via read.weight
        embed.weight  vocab res
        pos.weight    pos res
        mask          1 res
        q.*           (kv g qk) res'
        k.*           (kv qk') res'
        v.*           (kv ov) res'
        o.*           res (kv g ov')
        router.*      e res'
        experts       e labels
        table         place wide
        read.*        labels wide
        """,
        shifting,
        {"res": (2, 4), "vocab": (5, 5), "pos": (5, 5), "kv": (1, 3), "g": (1, 3), "qk": (1, 3), "ov": (1, 3)}
        | {"e": (2, 3), "place": (2, 3), "wide": (2, 3)}
        | LABELS,
        (),
        anything=("k.bias",),
    ),
]
