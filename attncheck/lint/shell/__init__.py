"""A bash parser that expands the words of a script as text and never runs it."""
