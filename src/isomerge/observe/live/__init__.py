"""Live modules: checkpoints that run, with weights that may be others."""
