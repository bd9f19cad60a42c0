"""The packages of the job are not known, or not all of them.

What it checks: whether there is an environment to look at. `--target` names a machine that nobody has looked at, and
only the packages that it or its files name are known there. `attncheck lint` in an environment of its own (pipx, uv
tool, a pre-commit hook, an action), with neither `--target` nor `--python`, knows nothing of the job's environment.

Why it matters: a package that is not named is neither there nor missing. Rules that need to know it do not judge; they
stand among those that could not judge (`-v` lists them, with what each lacks).

What to do: name the environment. `--target h100x8,torch=2.9,flash-attn=2.8.3` names versions and `flash-attn=none` a
package that is missing; `--target h100x8,requirements.txt` reads requirements and lock files; `--python
PATH` examines the environment itself.

Source: attncheck/doctor/target.py.
"""

from __future__ import annotations

from attncheck.doctor.rules import Rule

RULE = Rule("ATN905", "note", lambda snapshot: (), by_engine=True)
