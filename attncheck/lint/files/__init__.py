"""Reads configuration files as text, without running them, and edits scripts, configuration files and commands."""
