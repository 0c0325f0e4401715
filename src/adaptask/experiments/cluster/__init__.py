"""Runs on the machines of a cluster: handed to Ray, kept on storage that all machines reach."""
