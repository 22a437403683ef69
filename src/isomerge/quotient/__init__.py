"""Models modulo symmetry: one representative per orbit, and what is the same on all of it."""
