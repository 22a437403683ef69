"""What the keys of ``config.json`` are called, and what they say: of layers, vocabularies, tied heads, and of two
models."""
