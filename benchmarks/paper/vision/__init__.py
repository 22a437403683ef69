"""The paper's vision experiments (Table 2 and 3, Figures 3 to 6), and what its reviewers asked, measured."""
