"""Datasets, and the episodes cut from them."""
