"""What `toy_newest` holds the law to: the largest groups of streams, and plausible wrong specs (see `test_mutants`)."""

from __future__ import annotations

from archs.mutants import mutant

NEWEST_STREAMS = {
    **dict.fromkeys(["nemotron_h-latent"], "O"),
    **dict.fromkeys(["deepseek_v3-ahead"], "SignedPerm"),
}
"""Toy -> the largest group of its stream."""
STILL_STREAMS: dict[str, dict[str, str]] = {
    name: {} for name in ("ernie4_5_moe-ahead", "exaone_moe-ahead", "nemotron_h-ahead", "glm4_moe-ahead")
}
"""Toys whose stream stays as it is: it is read by layers that nothing runs."""
UNBIASED_NEWEST: list[str] = []
"""Toys of a text with a free value bias that have none."""
NEWEST_MUTANTS = [
    # layers that predict further tokens, and Nemotron's latents
    mutant("nemotron_h-latent", "the latent's reader not dual", "lat", "ff lat' if lat => ff lat if lat"),
    mutant("nemotron_h-latent", "experts' output not in the latent", "out", "down_proj.weight out ff' if lat => down_proj.weight other ff' if lat", "size out = lat => size out = lat\nsize other = lat"),
    mutant("nemotron_h-latent", "the latent's bias forgotten", "lat", "fc1_latent_proj.bias lat if => fc1_latent_proj.bias other if", "size out = lat => size out = lat\nsize other = lat"),
]  # fmt: skip
