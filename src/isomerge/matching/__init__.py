"""Matching: which element of the symmetry group brings one checkpoint closest to another."""
