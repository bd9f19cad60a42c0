"""Every command on every Python that attncheck names, with its oldest and its newest dependencies.

`python -m tests.pythons` makes an environment for each, runs every command in it, and prints the table.
"""
