"""Families of `toy_pairs` whose saved names are tried, their streams, and what their toys cannot move (see
`test_names`, `test_streams`, `test_law`)."""

from __future__ import annotations

from toy_pairs import HALVES

PAIR_STREAMS: dict[str, dict[str, str]] = {
    **{name: {"res": "Perm", "read_res": "Perm"} for name in HALVES if name.startswith("encoder-decoder")},
    **{f"vision-encoder-decoder-{kind}": {"res": "Perm", "read_res": "OFixingOnes"} for kind in ("gpt2", "bert")},
    "blip-answers": {"t_res": "Perm", "q_res": "Perm", "vres": "OFixingOnes"},
    "blip-contrast": {"t_res": "Perm", "vres": "Perm"},
    "vision-encoder-decoder-donut": {"res": "Perm", **{f"read_res{stage}": "Perm" for stage in range(4)}},
}
"""The largest groups of the streams of pairs, and of those that have other parts than their kin."""
PAIR_IDLE = {("vision-encoder-decoder-donut", "read_h0")}
"""Permutations of one head."""
