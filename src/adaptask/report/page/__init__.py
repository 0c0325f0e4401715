"""One self-contained page of a study with its plots: which runs, which pictures, how it is set."""
