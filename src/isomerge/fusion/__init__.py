"""Fusion: how aligned tensors become one."""
