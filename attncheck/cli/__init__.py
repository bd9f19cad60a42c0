"""The command line: one module a command, on Typer.

Answers: what a user typed. A command parses, calls one room, renders a report and exits; it decides nothing itself.

To add a command: a module in `commands/` called like it, whose `COMMAND` names a function, its heading in the help
and its place there. It is found by its name and imported when it is named, so that `attncheck explain` does not pay
for `attncheck smoke`. Options that several commands have are said once, in `options.py`: a parameter annotated with
one of its aliases is that option, a parameter of one of its dataclasses a whole group.

Read first: `commands/determinism.py`, then `app.py`. `settings.py` turns options into checked values over the
policy's file, `output.py` writes the report and knows the exit code, `attncheck/__main__.py` turns every error that a
user can cause into one line.

Imports: any room, but only in the function that needs it; torch never.
"""
