"""Searching for good options: trials decided beforehand, kept in a folder, judged in validation."""
