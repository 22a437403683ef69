"""Experts made of dense models: what is asked for, checked, and written down again."""
