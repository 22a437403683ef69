"""Tiny tensors in the layouts of single files, by names that are written out here: what diffusers converts them to is the
oracle."""

from __future__ import annotations

from collections.abc import Mapping

import torch

WIDTH, HEAD, TEXT, POOLED, CHANNELS = 16, 8, 12, 6, 4
Tensors = dict[str, torch.Tensor]


def drawn(shapes: Mapping[str, tuple[int, ...]], seed: int, start: str = "") -> Tensors:
    """Random tensors of these shapes."""
    rng = torch.Generator().manual_seed(seed)
    return {start + name: torch.randn(shape, generator=rng) for name, shape in shapes.items()}


def _linear(name: str, out: int, into: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (out, into), f"{name}.bias": (out,)}


def flux(seed: int, start: str = "", *, guided: bool = True) -> Tensors:
    """FLUX.1's transformer of two double and one single block, as Black Forest Labs stores it."""
    w = WIDTH
    shapes: dict[str, tuple[int, ...]] = {**_linear("img_in", w, CHANNELS), **_linear("txt_in", w, TEXT)}
    for name, into in (("time_in", 256), ("vector_in", POOLED), *([("guidance_in", 256)] if guided else [])):
        shapes |= {**_linear(f"{name}.in_layer", w, into), **_linear(f"{name}.out_layer", w, w)}
    for k in range(2):
        for side in ("img", "txt"):
            at = f"double_blocks.{k}.{side}"
            shapes |= {**_linear(f"{at}_mod.lin", 6 * w, w), **_linear(f"{at}_attn.qkv", 3 * w, w)}
            shapes |= {
                **_linear(f"{at}_attn.proj", w, w),
                **_linear(f"{at}_mlp.0", 4 * w, w),
                **_linear(f"{at}_mlp.2", w, 4 * w),
            }
            shapes |= {f"{at}_attn.norm.{one}_norm.scale": (HEAD,) for one in ("query", "key")}
    at = "single_blocks.0"
    shapes |= {
        **_linear(f"{at}.linear1", 7 * w, w),
        **_linear(f"{at}.linear2", w, 5 * w),
        **_linear(f"{at}.modulation.lin", 3 * w, w),
    }
    shapes |= {f"{at}.norm.{one}_norm.scale": (HEAD,) for one in ("query", "key")}
    shapes |= {**_linear("final_layer.linear", CHANNELS, w), **_linear("final_layer.adaLN_modulation.1", 2 * w, w)}
    return drawn(shapes, seed, start)


def sd3(seed: int, start: str = "", *, later: bool = False) -> Tensors:
    """Stable Diffusion 3's transformer of two blocks, as Stability stores it; ``later``: 3.5, with norms and a second
    attention in the first block."""
    w, heads = 128, ("ln_q", "ln_k") if later else ()
    shapes: dict[str, tuple[int, ...]] = {"pos_embed": (1, 36, w), **_kernel("x_embedder.proj", w, CHANNELS, 2)}
    shapes |= {**_linear("context_embedder", w, TEXT), **_linear("final_layer.linear", 4 * CHANNELS, w)}
    shapes |= _linear("final_layer.adaLN_modulation.1", 2 * w, w)
    for name, into in (("t_embedder", 256), ("y_embedder", POOLED)):
        shapes |= {**_linear(f"{name}.mlp.0", w, into), **_linear(f"{name}.mlp.2", w, w)}
    for k in range(2):
        dual, last = later and k == 0, k == 1
        for side in ("x", "context"):
            at, reads = f"joint_blocks.{k}.{side}_block", last and side == "context"
            count = 2 if reads else 9 if dual and side == "x" else 6
            shapes |= {**_linear(f"{at}.adaLN_modulation.1", count * w, w), **_linear(f"{at}.attn.qkv", 3 * w, w)}
            shapes |= {f"{at}.attn.{norm}.weight": (64,) for norm in heads}
            if not reads:
                shapes |= _linear(f"{at}.attn.proj", w, w)
                shapes |= {**_linear(f"{at}.mlp.fc1", 4 * w, w), **_linear(f"{at}.mlp.fc2", w, 4 * w)}
        if dual:
            at = f"joint_blocks.{k}.x_block.attn2"
            shapes |= {**_linear(f"{at}.qkv", 3 * w, w), **_linear(f"{at}.proj", w, w)}
            shapes |= {f"{at}.{norm}.weight": (64,) for norm in heads}
    return drawn(shapes, seed, start)


def open_clip(seed: int, start: str) -> Tensors:
    """A text tower of two layers in OpenCLIP's layout, with the temperature that stands beside it."""
    w = 64
    shapes: dict[str, tuple[int, ...]] = {
        "token_embedding.weight": (30, w), "positional_embedding": (8, w), "text_projection": (w, 20),
        "ln_final.weight": (w,), "ln_final.bias": (w,), "logit_scale": (),
    }  # fmt: skip
    for k in range(2):
        at = f"transformer.resblocks.{k}"
        shapes |= {f"{at}.attn.in_proj_weight": (3 * w, w), f"{at}.attn.in_proj_bias": (3 * w,)}
        shapes |= {
            **_linear(f"{at}.attn.out_proj", w, w),
            **_linear(f"{at}.mlp.c_fc", 24, w),
            **_linear(f"{at}.mlp.c_proj", w, 24),
        }
        shapes |= {f"{at}.ln_{n}.{kind}": (w,) for n in (1, 2) for kind in ("weight", "bias")}
    return drawn(shapes, seed, start)


def _kernel(name: str, out: int, into: int, size: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (out, into, size, size), f"{name}.bias": (out,)}


def _norm(name: str, width: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.{kind}": (width,) for kind in ("weight", "bias")}


def _resnet(name: str, out: int, into: int) -> dict[str, tuple[int, ...]]:
    found = {**_norm(f"{name}.norm1", into), **_kernel(f"{name}.conv1", out, into, 3)}
    found |= {**_norm(f"{name}.norm2", out), **_kernel(f"{name}.conv2", out, out, 3)}
    return found | (_kernel(f"{name}.nin_shortcut", out, into, 1) if out != into else {})


def vae(seed: int, start: str, *, kernels: bool = True) -> Tensors:
    """An autoencoder of two heights with one layer each; its attention as kernels of one pixel, or as matrices."""
    low, high = 32, 64
    shapes: dict[str, tuple[int, ...]] = {**_kernel("quant_conv", 8, 8, 1), **_kernel("post_quant_conv", 4, 4, 1)}
    shapes |= {
        **_kernel("encoder.conv_in", low, 3, 3),
        **_kernel("encoder.conv_out", 8, high, 3),
        **_norm("encoder.norm_out", high),
    }
    shapes |= {
        **_kernel("decoder.conv_in", high, 4, 3),
        **_kernel("decoder.conv_out", 3, low, 3),
        **_norm("decoder.norm_out", low),
    }
    shapes |= {**_resnet("encoder.down.0.block.0", low, low), **_resnet("encoder.down.1.block.0", high, low)}
    shapes |= {
        **_kernel("encoder.down.0.downsample.conv", low, low, 3),
        **_kernel("decoder.up.1.upsample.conv", high, high, 3),
    }
    for height, widths in ((1, (high, high)), (0, (high, low))):
        shapes |= _resnet(f"decoder.up.{height}.block.0", widths[1], widths[0])
        shapes |= _resnet(f"decoder.up.{height}.block.1", widths[1], widths[1])
    for side in ("encoder", "decoder"):
        shapes |= {**_resnet(f"{side}.mid.block_1", high, high), **_resnet(f"{side}.mid.block_2", high, high)}
        shapes |= _norm(f"{side}.mid.attn_1.norm", high)
        for one in ("q", "k", "v", "proj_out"):
            at = f"{side}.mid.attn_1.{one}"
            shapes |= _kernel(at, high, high, 1) if kernels else _linear(at, high, high)
    return drawn(shapes, seed, start)
