"""Adaptive samplers in other people's loops: one module a library.

`adaptask.integrations.torch` for a PyTorch DataLoader, `.lightning`, `.easyfsl`, `.learn2learn`.
"""
