"""Fusion by running the models: soups, regression of their outputs, statistics put back."""
