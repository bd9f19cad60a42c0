"""The only room that starts processes.

Answers: how is code that may crash, hang or print run safely? In a child process with a deadline, whose process group
is killed with it; nothing outlives the command.

`child.py` runs one process and returns how it ended; `pool.py` keeps workers that run one item after another, and
takes another worker if one is lost; `losses.py` finds what the lost items share; `ranks.py` starts a group of ranks
by PyTorch's launcher, or joins the one that torchrun or srun started; `overlay.py` installs packages into a throwaway
folder. `inside/` is what runs in a child: a job names its function as text ("module:function"), so that nothing here
imports a task.

Read first: `child.py`, `pool.py`, then `inside/worker.py`.

Imports: `core`; torch only in `inside/`.
"""
