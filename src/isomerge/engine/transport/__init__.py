"""Fusion by optimal transport: soft averages of neurons in place of an element of an orbit."""
