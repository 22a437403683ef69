"""Data: examples for a checkpoint, through its own tokenizer or image processor."""
