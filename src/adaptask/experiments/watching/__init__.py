"""A running run or study in the terminal, from its records alone."""
