"""The engine: joins checkpoints with matching and fusion, one work unit at a time."""
