"""The linker for Python packages: what each takes from the others, and whether it is there; nothing is imported.

`interface` is the entry, `packages` says what is linked, `linker` links it, `store` keeps the answers between two
looks. `source` finds and parses files, `conditions` decides a guard, `imports` follows what a module's import
statements do, `uses` looks at attributes and calls, `names` and `signatures` answer for the package that is taken
from, `reach` finds what a missing name stops, `whereabouts` where it is now.
"""
