"""Reads configuration files as text, never by running them, and edits scripts, configuration files and commands."""
