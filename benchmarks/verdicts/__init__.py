"""Is `verify` ever wrong about a pair of which config, tensors or both were changed?"""
