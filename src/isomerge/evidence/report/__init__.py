"""The report that people read: facts of a run, the verdict, plots, and one self-contained page."""
