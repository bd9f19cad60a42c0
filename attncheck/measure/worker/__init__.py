"""Measuring inside a worker process: parity, repeats and timings of one backend on one device."""
