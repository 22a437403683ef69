"""What the reviewers asked beyond the paper's models: other architectures, and checkpoints that others have
trained."""
