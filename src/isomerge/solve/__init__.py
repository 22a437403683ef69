"""Searches over whole models: how models stand, and what brings them together."""
