"""How each package's attention functions are called on a case, and as the lines of a script."""
