"""Adapters: what a fine-tune learned, as a LoRA."""
