"""Discovery: the spec of an architecture that has none, proposed from a tiny model and proven by the law."""
