"""Recipes: mergekit's YAML, read, checked and written."""
