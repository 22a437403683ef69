"""The language in which architectures are described: expressions, names, statements, lines, and the spec that a
text becomes.
"""
