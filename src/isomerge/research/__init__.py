"""What is built beside the product, of public names alone: relational attention, optimisers on the quotient by
symmetry, federated averaging, and the published ways to match that ours are compared with.

The core imports none of it but by name: the command `relational`, and ``--match`` (`isomerge.solve.match_names`).
"""
