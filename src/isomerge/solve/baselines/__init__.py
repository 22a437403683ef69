"""Published ways to match, for comparison: Git Re-Basin and fusion by optimal transport."""
