"""Mutated input files against the command line: `python -m benchmarks.fuzz --help`."""
