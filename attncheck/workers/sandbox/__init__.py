"""A supervisor that runs one command so that it cannot change, reach or leave behind anything outside its folders.

Answers: what may the command write, connect to and leave running? It runs as a program, under attncheck's interpreter:
`supervisor.py` picks the strongest isolation that this kernel grants and starts the command in it; `mounts.py` makes
the file system read-only, with throwaway overlays where programs usually write; `landlock.py` denies writes by the
kernel's Landlock; `metadata.py` covers the calls that Landlock does not know; `children.py` ends what is left;
`calls.py` holds the system calls by ctypes.

Read first: `supervisor.py`. Imports: only the standard library, and nothing of attncheck.
"""
