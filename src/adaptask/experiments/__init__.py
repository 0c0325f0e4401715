"""Runs, presets and comparisons, and what the command line does."""
