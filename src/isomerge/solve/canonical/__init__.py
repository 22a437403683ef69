"""Models in their canonical frame: gains folded, gauges balanced, so that all that is left to find keeps
lengths.
"""
