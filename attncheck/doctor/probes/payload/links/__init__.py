"""A linker for Python packages: finds names that one package imports from another and that do not exist. Nothing is
imported.

`interface` is the entry, `packages` lists what is linked, `linker` links it, and `store` caches the records. `source`
finds and parses files, `conditions` decides guards, `imports` follows import statements, and `uses` checks attributes
and calls. `names` and `signatures` answer for the package that provides a name. `reach` finds what a missing name
stops, and `whereabouts` where it is now.
"""
