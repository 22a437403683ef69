"""Matching several models onto their common mean."""
