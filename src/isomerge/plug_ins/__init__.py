"""What others add to isomerge: by entry points of installed packages, and by modules that a command imports."""
