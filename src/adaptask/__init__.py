"""Adaptive task sampling for few-shot meta-learning."""

__version__ = "0.1.0"
