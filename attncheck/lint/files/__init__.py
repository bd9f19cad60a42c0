"""Reads what users write as text, never by running it, and edits it: scripts, configuration files, commands."""
