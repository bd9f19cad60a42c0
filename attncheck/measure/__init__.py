"""The measuring room: torch code that runs in workers only, never in attncheck's own process."""
