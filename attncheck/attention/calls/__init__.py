"""Calls of each package's attention functions on a case, and the same calls as the lines of a script."""
