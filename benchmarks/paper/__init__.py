"""The paper's tables and figures, measured again: on real data, beside what isomerge adds."""
