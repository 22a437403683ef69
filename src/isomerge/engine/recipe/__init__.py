"""Recipes: merges as they are written in YAML."""
