"""Two checkpoints of one function, for the guide "Prepare models for mergekit": a second on one core.

    python demo-out/disguised_llama.py     # writes `llama` (small, random weights) and `disguised`

`disguised` is what it says: heads and neurons in another order, rotary pairs turned, values in another basis.
"""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils import logging

import isomerge
from isomerge.evidence.law import random_alignment
from isomerge.matching.selection import select_spaces
from isomerge.models.recognised import recognise

CONFIG = LlamaConfig(
    vocab_size=256,
    hidden_size=64,
    intermediate_size=160,
    num_hidden_layers=2,
    num_attention_heads=8,
    num_key_value_heads=4,
    tie_word_embeddings=False,
)

if __name__ == "__main__":
    logging.disable_progress_bar()
    torch.manual_seed(0)
    LlamaForCausalLM(CONFIG).save_pretrained("llama")
    model = recognise("llama")
    spec = select_spaces(model.spec, "default").spec
    disguise = random_alignment(spec, model.blocks, torch.Generator().manual_seed(1))
    isomerge.apply(disguise, "llama", out="disguised")
    print("Wrote llama and disguised.")
