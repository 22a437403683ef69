"""Runs: units read, worked on and written, by threads or a cluster; what a run costs, and what it reports."""
