"""The command line: one module per command, built on Typer.

A command parses its arguments, calls one room, renders a report and exits; it decides nothing itself.

To add a command, add a module named like it to `commands/`. Its `COMMAND` names a function, its heading in the help and
its position there. It is found by its name and imported only when it is used, so that `attncheck explain` does not pay
for `attncheck smoke`. Options that several commands share are defined once, in `options.py`: a parameter annotated with
one of its aliases is that option; a parameter of one of its dataclasses is a whole group.

Read first: `commands/determinism.py`, then `app.py`. `settings.py` combines options with the policy file into checked
values, `output.py` writes the report and chooses the exit code, `attncheck/__main__.py` turns every error that a user
can cause into one line.

Imports: any room, but only in the function that needs it; never torch.
"""
