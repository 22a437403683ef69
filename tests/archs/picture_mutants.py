"""Plausible wrong specs of the architectures in `toy_pictures`, which the law must refute (see `test_mutants`)."""

from __future__ import annotations

from archs.mutants import mutant

PICTURE_MUTANTS = [
    # films
    mutant("vivit", "key not dual", "qk", "(h qk') => (h qk)"),
    mutant("vivit", "the film's patches forgotten", "res", "res channel frame row column => pixels channel frame row column"),
    mutant("timesformer", "the last map of time not dual", "mid", "temporal_dense.weight res mid' => temporal_dense.weight res mid"),
    mutant("timesformer", "fused head by head", "th", "[th tqk | th tqk' | th tov] => (th [tqk | tqk' | tov])"),
    mutant("timesformer", "times forgotten", "res", "time_embeddings 1 frame res => time_embeddings 1 frame other"),
    mutant("timesformer-joint", "negative scale under ReLU", "u", "PositiveScale[l, ff] => Scale[l, ff]"),
    # towers
    mutant("pixio", "key not dual", "qk", "(h qk') => (h qk)"),
    mutant("pixio", "features permuted", "res", "residual n1 => residual res: Perm\nresidual n1"),
    mutant("mlcd_vision_model", "interleaved pairs", "c", "(h c pair) => (h pair c)", "(h c' pair) => (h pair c')"),
    mutant("mlcd_vision_model", "key bias under RoPE", "kb", "shift vb: => shift kb: encoder.layers.{l}.self_attn.k_proj.bias\nshift vb:"),
    # stages
    mutant("segformer", "the coarser grid's bias forgotten", "r0", "sr.bias r0 if => sr.bias rows if"),
    mutant("segformer", "the coarser grid's gain not scaled back", "g1", "(h1 qk1') (r1 g1)' => (h1 qk1') r1'"),
    mutant("segformer", "a factor through the activation", "u0", "dwconv.weight (ff0 u0') => dwconv.weight ff0", "res0 ff0' => res0 (ff0 u0')"),
    mutant("segformer", "neighbours' biases forgotten", "ff2", "dwconv.bias ff2 => dwconv.bias rows"),
    mutant("segformer", "stages in their own order", "c0", "[c3 | c2 | c1 | c0]' => [c0 | c1 | c2 | c3]'"),
    mutant("segformer", "the next stage past the norm", "n0f", "res1 (res0 n0f)' => res1 res0'"),
    mutant("segformer", "the norm over the images forgotten", "fuse", "batch_norm.weight fuse => batch_norm.weight rows"),
    mutant("segformer-labels", "the head past the last norm", "n3f", "classifier.weight labels (res3 n3f)' => classifier.weight labels res3'"),
    mutant("swin", "the table of places forgotten", "h0", "place h0 => place heads"),
    mutant("swin", "merged neighbours' gains forgotten", "res1", "norm.weight [res1 | res1 | res1 | res1] => norm.weight four"),
    mutant("swin", "neighbours and coordinates mistaken", "res0", "[res0 | res0 | res0 | res0] => (res0 4)"),
    mutant("swin", "key not dual", "qk3", "(h3 qk3') => (h3 qk3)"),
    mutant("donut-swin", "norm's bias not scaled", "n21", "2.blocks.{l}.layernorm_before.bias (res2 n21) => 2.blocks.{l}.layernorm_before.bias res2"),
    mutant("donut-swin", "output not dual", "ov1", "(h1 ov1') => (h1 ov1)"),
    mutant("swinv2", "any matrix under norms of length", "qk0", "space qk0 as qk: O[ => space qk0 as qk: GL["),
    mutant("swinv2", "temperatures forgotten", "h1", "logit_scale h1 => logit_scale rows"),
    mutant("swinv2", "biases of positions forgotten", "h2", "continuous_position_bias_mlp.2.weight h2 => continuous_position_bias_mlp.2.weight rows"),
    mutant("swinv2", "negative scale under ReLU", "w0", "space w0 as scale: PositiveScale => space w0 as scale: Scale"),
    mutant("swinv2", "rotated behind the branches' norms", "res3", "residual res3: Perm => residual res3: O", "layernorm_after.weight diag(res3) => layernorm_after.weight res3", "layernorm_before.weight diag(res3) => layernorm_before.weight res3", "downsample.norm.weight diag(res3) => downsample.norm.weight res3", "diag(res3 nf) => (res3 nf)"),
    # pairs
    mutant("owlvit", "the tower's last gain in the heads", "vision_nf", " without nf if => \x20if", "visual_projection.weight shared vision_res' => visual_projection.weight shared (vision_res vision_nf)'", "diag(vision_res hn) => diag(vision_res)", "layer_norm.bias (vision_res hn) => layer_norm.bias vision_res", "(vision_res hn)' => (vision_res vision_nf)'", 'residual hn: Scale[vision_res] if "layer_norm.weight" in tensors\n => \n'),
    mutant("owlvit", "classes past the heads' norm", "hn", "class_head.dense0.weight shared (vision_res hn)' => class_head.dense0.weight shared vision_res'"),
    mutant("owlv2", "boxes' neurons not dual", "b1", "box_head.dense2.weight box b1' => box_head.dense2.weight box rows"),
    mutant("owlv2", "objects past the heads' norm", "vision_res", "objectness_head.dense0.weight o0 (vision_res hn)' => objectness_head.dense0.weight o0 rows"),
    mutant("clipseg", "what to look for forgotten", "dres", "film_add.weight dres => film_add.weight rows"),
    mutant("clipseg", "the stream past the last norm", "vision_res", "dres vision_res' => dres rows"),
    mutant("clipseg", "negative scale under ReLU", "du", "PositiveScale[l, dff] => Scale[l, dff]"),
    mutant("clipseg-complex", "the drawing forgotten", "dres", "transposed_convolution.0.weight inner dres' => transposed_convolution.0.weight inner rows"),
    mutant("xclip", "messages in coordinates of their own", "vision_res", "message_fc.bias res => message_fc.bias rows", part="xclip_vision_model"),
    mutant("xclip", "the message's bias not scaled", "vision_m1", "message_ln.bias (res m1) => message_ln.bias res", part="xclip_vision_model"),
    mutant("xclip", "film past the prompts' norm", "vn", "prompts_visual_projection (vision_res vn)' => prompts_visual_projection vision_res'"),
    mutant("xclip", "prompts' keys not dual", "pqk", "(ph pqk') => (ph pqk)"),
]  # fmt: skip
