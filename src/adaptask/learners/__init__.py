"""Support set and queries in, query logits out: one file an algorithm."""
