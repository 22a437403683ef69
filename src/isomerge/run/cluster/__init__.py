"""Units worked on by the machines of a Ray cluster."""
