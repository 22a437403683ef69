"""How fast isomerge is, and how much memory it takes, measured against plain implementations on one machine."""
