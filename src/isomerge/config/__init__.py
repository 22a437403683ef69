"""What the keys of ``config.json`` are called, and what they say: of layers, vocabularies, inputs, tied heads, and of two models."""
