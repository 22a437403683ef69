"""Matching one model onto another, block by block and in passes over both."""
