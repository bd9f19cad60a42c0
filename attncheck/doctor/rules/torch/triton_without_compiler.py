"""triton lacks a C compiler or Python headers, which it needs to compile its launchers.

What it checks: whether CC, gcc or clang is on PATH, and whether Python.h is in the folder that sysconfig names. This is
checked on a machine with a GPU if liger-kernel, verl, OpenRLHF or a launch that compiles will use triton. It is a
prediction, because triton reuses launchers from its cache.

Why it matters: triton compiles a small C file for the first kernel of every job. Without a compiler it raises "Failed
to find C compiler. Please specify via CC environment variable." Without the headers it raises "fatal error: Python.h:
No such file or directory". Slim and runtime images lack both.

What to do: install gcc, or the headers of this Python.

Source: triton 3.2.0 and 3.6.0, `triton/runtime/build.py` (`_build`). Run: that of 3.2.0 raises without gcc on PATH
and compiles with it. The package managers' commands were not tried.
"""

from attncheck.doctor.fixes.torch import TRITON_DISTRIBUTIONS
from attncheck.doctor.queries.covering import sees_gpu
from attncheck.doctor.rules import Absent, Fix, Problem, Problems, Rule, Snapshot
from attncheck.doctor.rules.torch.triton_import_broken import list_users


def check(snapshot: Snapshot) -> Problems:
    tools = snapshot.build_tools
    is_complete = not isinstance(tools.c_compiler, Absent) and not isinstance(tools.python_headers, Absent)
    users = [] if is_complete else list_users(snapshot)
    if not users or not snapshot.lists(*TRITON_DISTRIBUTIONS) or not sees_gpu(snapshot):
        return
    if isinstance(tools.c_compiler, Absent):
        yield _make_problem(snapshot, users, "a C compiler", tools.c_compiler.reason, "gcc", "gcc_linux-64")
    if isinstance(tools.python_headers, Absent):
        minor = ".".join(snapshot.host.python_version.split(".")[:2])
        reason = tools.python_headers.reason
        yield _make_problem(snapshot, users, "Python's headers", reason, f"python{minor}-dev", f"python={minor}")


def _make_problem(
    snapshot: Snapshot, users: list[str], what: str, reason: str, debian_package: str, conda_package: str
) -> Problem:
    if snapshot.host.conda:
        prefix = snapshot.host.prefix
        command = f"conda install -y -p {prefix} -c conda-forge {conda_package}"
        if debian_package == "gcc":
            command += f" && export CC={prefix}/bin/x86_64-conda-linux-gnu-cc"
    else:
        command = f"apt-get update && apt-get install -y {debian_package}"
    return Problem(
        message=f"triton needs {what} for the first kernel that {', '.join(users)} will run, but it is missing",
        subject="triton",
        evidence=(reason,),
        fixes=(Fix(f"install {what} (not tried here)", "command", command, "unsafe"),),
        predicted=True,
    )


RULE = Rule("ATN172", "error", check)
