"""The only room that starts processes.

It answers how to safely run code that may crash, hang or print: in a child process with a deadline, whose process group
is killed with it. No process outlives the command.

`child.py` runs one process and returns how it ended. `pool.py` keeps workers that run one item after another, and
replaces a lost worker. `losses.py` finds the features that lost items share. `ranks.py` starts a group of ranks with
PyTorch's launcher, or joins the group that torchrun or srun started. `overlay.py` installs packages into a throwaway
folder. `bash_syntax.py` checks a script with `bash -n`. `inside/` runs in a child. A job names its function as text
("module:function"), so that this room imports no task.

Read first: `child.py`, `pool.py`, then `inside/worker.py`.

Imports: `core`; torch only in `inside/`.
"""
