"""All merge methods side by side, unaligned and aligned (see `python -m benchmarks.comparison --help`)."""
