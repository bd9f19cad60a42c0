"""The experiments themselves: each runs in a child of the examined interpreter, on a CPU."""
