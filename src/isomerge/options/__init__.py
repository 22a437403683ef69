"""Options of commands: which a run uses, and what is said of those that it does not."""
