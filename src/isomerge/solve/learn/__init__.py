"""Learned matching: what gradients change between models that are matched already."""
