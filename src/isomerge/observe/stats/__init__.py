"""Statistics: what activations and gradients of a model say, where they are read, and how they move."""
