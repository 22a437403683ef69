"""Labelled pairs of models, and what a first look says of them."""
