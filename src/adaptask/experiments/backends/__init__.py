"""Three ways to make runs: interleaved in this process, in a pool of processes, or through Ray."""
