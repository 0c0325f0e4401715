"""The step, the loop around it, evaluation, checkpoints and run folders."""
