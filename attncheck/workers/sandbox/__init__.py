"""A supervisor that runs one command so that it cannot change, reach or leave anything outside its folders.

It decides what the command may write, connect to and leave running. It runs as a program, under attncheck's
interpreter. `supervisor.py` picks the strongest isolation that this kernel grants and starts the command in it.
`mounts.py` makes the file system read-only, with throwaway overlays in the folders that programs usually write to.
`landlock.py` denies writes by the kernel's Landlock. `metadata.py` covers the calls that Landlock does not know.
`children.py` ends the remaining processes. `calls.py` has the system calls, by ctypes.

Read first: `supervisor.py`. Imports: only the standard library, and nothing from attncheck.
"""
