"""Symmetries of weights: typed axes, groups that act on them, and specs that declare both."""
