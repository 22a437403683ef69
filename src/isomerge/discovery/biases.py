"""Biases that no output depends on: a key's, which softmax drops, and a value's, which passes through to the
output's."""

from __future__ import annotations

from isomerge.discovery.attention_spaces import Attention
from isomerge.discovery.draft import Draft
from isomerge.discovery.head_chunks import bias_of
from isomerge.discovery.layouts import leaf_number
from isomerge.discovery.lines import LineFound
from isomerge.discovery.proving import Court


def prove_shifts(draft: Draft, court: Court, attention: Attention) -> Draft:
    """The draft with those shifts of an attention's biases that the law proves."""
    heads, end = attention.heads, "" if attention.number == 1 else str(attention.number)
    lines = list(draft.lines)
    output = bias_of(heads.output, lines)
    for role, name in (("k", f"kb{end}"), ("v", f"vb{end}")):
        for line in heads.role_lines(role)[:1]:
            bias = bias_of(line, lines)
            if bias is None or draft.free(bias, 0):
                continue
            text = bias.name + _block(attention, line, role)
            if role == "v":
                if output is None or draft.free(output, 0):
                    continue
                text += f" -> {output.name} via {heads.output.name}"
            tried = draft.with_shift(name, text)
            if court.accepts(tried, name):
                draft = tried
    return draft


def _block(attention: Attention, line: LineFound, role: str) -> str:
    """Which concatenated part of a fused bias a role is; of a partly rotated key the part that is not turned."""
    places = next(c for (n, a), c in attention.heads.roles.items() if n == line.name and a == line.out)
    number, count = leaf_number([p for p in places if p], role, attention.parts)
    if role == "k" and attention.parts["k"].startswith(("[c", "[pair")):
        number += 1
    return f"#{number}" if count > 1 else ""
