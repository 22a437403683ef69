"""Laws of relational transformers."""
