"""What `toy_newest` holds the law to: the largest groups of streams, and plausible wrong specs (see `test_mutants`)."""

from __future__ import annotations

from archs.mutants import mutant

NEWEST_STREAMS = {
    **dict.fromkeys(["nemotron_h-latent", "mellum", "glm_moe_dsa", "hy_v3"], "O"),
    **dict.fromkeys(["deepseek_v3-ahead", "axk1", "axk1-halves"], "SignedPerm"),
}
"""Toy -> the largest group of its stream."""
STILL_STREAMS: dict[str, dict[str, str]] = {
    name: {}
    for name in ("ernie4_5_moe-ahead", "exaone_moe-ahead", "nemotron_h-ahead", "glm4_moe-ahead", "mellum-ahead")
}
"""Toys whose stream stays as it is: it is read by layers that nothing runs."""
UNBIASED_NEWEST = ["mellum-ahead"]
"""Toys of a text with a free value bias that have none."""
NEWEST_MUTANTS = [
    # layers that predict further tokens, and Nemotron's latents
    mutant("nemotron_h-latent", "the latent's reader not dual", "lat", "ff lat' if lat => ff lat if lat"),
    mutant("nemotron_h-latent", "experts' output not in the latent", "out", "down_proj.weight out ff' if lat => down_proj.weight other ff' if lat", "size out = lat => size out = lat\nsize other = lat"),
    mutant("nemotron_h-latent", "the latent's bias forgotten", "lat", "fc1_latent_proj.bias lat if => fc1_latent_proj.bias other if", "size out = lat => size out = lat\nsize other = lat"),
    # kin
    mutant("mellum", "gains not dual", "t", "(c pair t') => (c pair t)"),
    mutant("mellum", "router forgotten", "e", "gate.(wg.|)weight e (res n2)' => gate.(wg.|)weight rows (res n2)'"),
    mutant("glm_moe_dsa", "half-split pairs", "c", "halves = 1 if => halves = 1 if model_type == \"glm_moe_dsa\" or"),
    mutant("glm_moe_dsa", "the indexer's weights forgotten", "ih", "weights_proj.weight ih (res n1)' => weights_proj.weight rows (res n1)'"),
    mutant("axk1", "experts scaled through the norm behind them", "n2", "post_mlp_layernorm.weight diag(res) => post_mlp_layernorm.weight diag(res n2)"),
    mutant("axk1-halves", "interleaved pairs", "c", "[nope | c pair] => [nope | pair c]", "c' pair => pair c'"),
    mutant("hy_v3", "the router's bias forgotten", "e", "expert)_bias (eg e) => expert)_bias rows"),
    mutant("hy_v3", "shared experts' bias not scaled", "su", "up_proj.bias (sff su) => up_proj.bias sff"),
]  # fmt: skip
