"""A linker for Python packages: finds missing names that one package imports from another. Nothing is imported.

`interface` is the entry, `packages` lists what is linked, `linker` links it, and `store` caches the records. `source`
finds and parses files, `conditions` decides guards, `imports` follows import statements, and `uses` checks attributes
and calls. `names` and `signatures` answer for the package that provides a name. `reach` finds what a missing name
stops, and `whereabouts` where it is now.
"""
