"""What is sent to the examined interpreter: standard library only, Python 3.8 or newer, relative imports only.

Each module has one look; it returns plain dictionaries in the JSON shape of `attncheck.core.snapshot` (a fact is
{"known": value}, {"absent": reason} or {"unreadable": reason}).
"""
