"""Checkpoints as bytes on disk: reading them, writing them, and what lies beside the weights."""
