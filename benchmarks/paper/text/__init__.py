"""Table 1 of the paper: language models tuned on domains of one task, merged, and tested in and out of their
domains."""
