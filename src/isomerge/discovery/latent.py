"""Latent attention (DeepSeek's): keys and values of all heads are read from one latent, queries perhaps from
another.

A head's query and key have a part without positions, and a rotated part whose key all heads share. The lengths that
a config states tell the tensors; the law tells the rest.
"""

from __future__ import annotations

from dataclasses import dataclass

from isomerge.config.config_parts import split
from isomerge.discovery.draft import Draft, SpaceDraft
from isomerge.discovery.head_chunks import bias_of
from isomerge.discovery.lines import LineFound
from isomerge.discovery.proving import Court
from isomerge.discovery.shrinking import kind_of
from isomerge.discovery.streams import prove_folded

ORDERS = ("pair c", "c pair")
"""How the coordinates of a pair lie: side by side, or in two halves."""


def prove_latent(draft: Draft, court: Court, stack: str) -> Draft:
    """The draft with the latent attention of one stack, where there is one: its tensors' axes, and the spaces that
    are proven."""
    keys = court.specimens[0].keys
    rank = next((key for key in keys if split(key)[1] == "kv_lora_rank"), None)
    lines = [line for line in draft.lines if line.stack == stack and line.uniform]
    attention = None if rank is None or "lat" in draft.sizes else _Latent.of(lines, court, split(rank)[0])
    if attention is None:
        return draft
    sized = draft.sized(**attention.sizes())
    rotated = SpaceDraft("c", "Complex", (*attention.indices, "pair"), "qk")
    for order in ORDERS:
        typed = sized.typed(attention.axes(order))
        if court.accepts(typed.with_space(rotated), "c"):
            typed = typed.with_space(rotated)
            break
    else:
        typed = sized.typed(attention.axes(ORDERS[0]))
    for space in attention.spaces():
        if court.accepts(tried := typed.with_space(space), space.name):
            typed = tried
    for latent in ("lat", "qlat"):
        typed = prove_folded(typed, court, latent)
    return typed if {"ov", "nope", "lat"} & typed.spaces.keys() else draft


@dataclass(frozen=True)
class _Latent:
    """The tensors of a latent attention."""

    part: str
    """What its keys begin with."""
    heads: str
    down: LineFound
    norm: LineFound
    up: LineFound
    output: LineFound
    queries: LineFound
    query_down: LineFound | None
    query_norm: LineFound | None
    lines: tuple[LineFound, ...]

    @classmethod
    def of(cls, lines: list[LineFound], court: Court, part: str) -> _Latent | None:
        """The tensors among the lines of a stack, by their lengths in both specimens; None where one is missing."""
        pair = [s.keys for s in court.specimens]
        heads = next(k for k in pair[0] if kind_of(k, pair[0]) == "heads" and split(k)[0] == part)
        width = next(k for k in pair[0] if kind_of(k, pair[0]) == "width" and split(k)[0] == part)
        sizes = [
            {
                "h": c[heads],
                "res": c[width],
                **{
                    short: c.get(f"{part}{key}") or 0
                    for short, key in (
                        ("lat", "kv_lora_rank"),
                        ("qlat", "q_lora_rank"),
                        ("nope", "qk_nope_head_dim"),
                        ("rope", "qk_rope_head_dim"),
                        ("ov", "v_head_dim"),
                    )
                },
            }
            for c in pair
        ]

        ups = tuple((s["h"] * (s["nope"] + s["ov"]), s["lat"]) for s in sizes)
        homes = [line.module.rpartition(".")[0] for line in lines if line.shapes == ups]
        lines = [line for line in lines if line.module.rpartition(".")[0] in homes[:1]]

        def line_of(*shapes: tuple[int, ...]) -> LineFound | None:
            return next((line for line in lines if line.shapes == shapes), None)

        query = [s["h"] * (s["nope"] + s["rope"]) for s in sizes]
        source = "qlat" if sizes[0]["qlat"] else "res"
        lines_of_attention = [
            line_of(*((s["lat"] + s["rope"], s["res"]) for s in sizes)),
            line_of(*((s["lat"],) for s in sizes)),
            line_of(*ups),
            line_of(*((s["res"], s["h"] * s["ov"]) for s in sizes)),
            line_of(*((n, s[source]) for n, s in zip(query, sizes, strict=True))),
        ]
        down, norm, up, output, queries = lines_of_attention
        if down is None or norm is None or up is None or output is None or queries is None:
            return None
        query_down = query_norm = None
        if source == "qlat":
            query_down = line_of(*((s["qlat"], s["res"]) for s in sizes))
            query_norm = line_of(*((s["qlat"],) for s in sizes))
            if query_down is None or query_norm is None:
                return None
        return cls(part, heads, down, norm, up, output, queries, query_down, query_norm, tuple(lines))

    @property
    def indices(self) -> tuple[str, ...]:
        return self.output.indices

    def sizes(self) -> dict[str, str]:
        sizes = {"h": self.heads, "lat": f"{self.part}kv_lora_rank", "lg": "1"}
        if self.query_down is not None:
            sizes |= {"qlat": f"{self.part}q_lora_rank", "qg": "1"}
        sizes |= {"nope": f"{self.part}qk_nope_head_dim", "ov": f"{self.part}v_head_dim", "c": "2"}
        return {**sizes, "pair": f"{self.part}qk_rope_head_dim // 2"}

    def spaces(self) -> list[SpaceDraft]:
        """All that may act beside the rotated pairs."""
        head = (*self.indices, "h")
        spaces = [
            SpaceDraft("ov", "GL", head),
            SpaceDraft("nope", "GL", head, "qk"),
            SpaceDraft("h", "Perm", self.indices),
        ]
        for latent, gain in (("lat", "lg"), ("qlat", "qg"))[: 1 if self.query_down is None else 2]:
            spaces += [
                SpaceDraft(latent, "SignedPerm", self.indices, "latent"),
                SpaceDraft(gain, "Scale", (*self.indices, latent), "latent"),
            ]
        return spaces

    def axes(self, order: str) -> dict[tuple[str, int], str]:
        """Every axis but the stream's, biases included."""
        key = order.replace("c", "c'")
        axes = {
            (self.down, 0): f"[lat | {key}]",
            (self.norm, 0): "diag(lat lg)",
            (self.up, 0): "(h [nope' | ov])",
            (self.up, 1): "(lat lg)'",
            (self.output, 1): "(h ov')",
            (self.queries, 0): f"(h [nope | {order}])",
        }
        if self.query_down is not None and self.query_norm is not None:
            axes |= {
                (self.query_down, 0): "qlat",
                (self.query_norm, 0): "diag(qlat qg)",
                (self.queries, 1): "(qlat qg)'",
            }
        named = {(line.name, axis): text for (line, axis), text in axes.items()}
        for (line, axis), text in axes.items():
            bias = bias_of(line, self.lines) if axis == 0 and len(line.shapes[0]) == 2 else None
            if bias is not None:
                named[bias.name, 0] = text
        return named
