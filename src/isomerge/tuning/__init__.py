"""Parameters of a merge, searched for: the models are aligned once, and merged and measured in memory."""
