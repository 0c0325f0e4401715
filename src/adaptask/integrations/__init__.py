"""Adaptive samplers in the loops of other libraries: one module per library.

`adaptask.integrations.torch` for a PyTorch DataLoader, `.lightning`, `.easyfsl`.
"""
