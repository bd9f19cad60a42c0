"""The payload sent to the examined interpreter: standard library only, Python 3.8 or newer, relative imports only.

The `collect_…` functions return plain dictionaries in the JSON shape of `attncheck.core.snapshot` (a fact is {"known":
value}, {"absent": reason} or {"unreadable": reason}).
"""
