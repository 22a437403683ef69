"""Evidence: distances, verdicts, the law, and the reports that carry them."""
