"""Models run on data: examples, live modules, statistics, losses."""
