"""The import lane: imports the attention stack in child processes and collects facts inside them."""
