"""A class of transformers that nobody wrote before: attention and MLP beside each other, gates on both, norms on
queries and keys."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput


class ParallelConfig(PretrainedConfig):
    """Sizes under their usual names."""

    model_type = "parallel_gated"

    def __init__(self, **keys: Any) -> None:
        sizes = {"vocab_size": 512, "hidden_size": 256, "num_hidden_layers": 4, "intermediate_size": 512}
        heads = {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 32, "rms_norm_eps": 1e-6}
        more = {"max_position_embeddings": 128, "tie_word_embeddings": False, "gated": True}
        super().__init__(**{**sizes, **heads, **more, **keys})


class Norm(nn.Module):
    """An RMSNorm."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)


class Block(nn.Module):
    """One norm, attention with grouped queries and an MLP; sigmoids let through what both give."""

    def __init__(self, c: Any) -> None:
        super().__init__()
        self.heads, self.shared, self.head, width = (
            c.num_attention_heads,
            c.num_key_value_heads,
            c.head_dim,
            c.hidden_size,
        )
        self.norm = Norm(width, c.rms_norm_eps)
        self.q_norm, self.k_norm = Norm(self.head, c.rms_norm_eps), Norm(self.head, c.rms_norm_eps)

        def linear(rows: int, columns: int) -> nn.Linear:
            return nn.Linear(columns, rows, bias=False)

        self.q_proj = linear(self.heads * self.head, width)
        self.k_proj = linear(self.shared * self.head, width)
        self.v_proj = linear(self.shared * self.head, width)
        self.g_proj = linear(self.heads * self.head, width) if c.gated else None
        self.o_proj = linear(width, self.heads * self.head)
        self.gate, self.up = linear(c.intermediate_size, width), linear(c.intermediate_size, width)
        self.down = linear(width, c.intermediate_size)

    def forward(self, x: Tensor) -> Tensor:
        rows, length, _ = x.shape
        y = self.norm(x)
        q, k, v = (
            project(y).view(rows, length, -1, self.head) for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = (turned(norm(part).transpose(1, 2)) for norm, part in ((self.q_norm, q), (self.k_norm, k)))
        k, v = (part.repeat_interleave(self.heads // self.shared, 1) for part in (k, v.transpose(1, 2)))
        later = torch.ones(length, length).triu(1).bool()
        seen = (q @ k.mT / self.head**0.5).masked_fill(later, float("-inf")).softmax(-1) @ v
        mixed = seen.transpose(1, 2).reshape(rows, length, -1)
        if self.g_proj is not None:
            mixed = mixed * self.g_proj(y).sigmoid()
        return x + self.o_proj(mixed) + self.down(self.gate(y).sigmoid() * self.up(y))


def turned(x: Tensor) -> Tensor:
    """Rotary positions, in two halves."""
    length, head = x.shape[-2:]
    speeds = 1e4 ** (-torch.arange(0, head, 2, dtype=torch.float64) / head)
    angles = torch.arange(length)[:, None] * speeds
    cos, sin = (torch.cat([wave, wave], -1).to(x.dtype) for wave in (angles.cos(), angles.sin()))
    return x * cos + torch.cat([-x[..., head // 2 :], x[..., : head // 2]], -1) * sin


class ParallelModel(PreTrainedModel):
    """Embeddings, blocks, a norm and a head."""

    config_class = ParallelConfig  # pyright: ignore[reportAssignmentType]
    base_model_prefix = "model"
    main_input_name = "input_ids"

    def __init__(self, c: Any) -> None:
        super().__init__(c)
        self.embed = nn.Embedding(c.vocab_size, c.hidden_size)
        self.blocks = nn.ModuleList(Block(c) for _ in range(c.num_hidden_layers))
        self.norm = Norm(c.hidden_size, c.rms_norm_eps)
        self.lm_head = nn.Linear(c.hidden_size, c.vocab_size, bias=False)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """Weights stay as torch draws them."""

    def forward(self, input_ids: Tensor, **more: Any) -> CausalLMOutput:
        x = self.embed(input_ids)
        for block in self.blocks:
            x = block(x)
        return CausalLMOutput(logits=self.lm_head(self.norm(x)))  # pyright: ignore[reportArgumentType]


def register() -> None:
    """Have transformers build the class from a config, as whoever wrote it would."""
    AutoConfig.register("parallel_gated", ParallelConfig, exist_ok=True)
    AutoModelForCausalLM.register(ParallelConfig, ParallelModel, exist_ok=True)
