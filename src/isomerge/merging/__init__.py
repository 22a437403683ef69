"""Merging: what is asked for, what is refused, and how aligned models are fused."""
