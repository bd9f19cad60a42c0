"""What stands in front of a command and only changes how it runs: env, nohup, exec, time, nice, numactl, sudo, timeout.

Options that take a value are the usual ones of coreutils, util-linux, numactl(8) and sudo(8), no one version's.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from attncheck.core.launch import Word
from attncheck.lint.launchers import Launcher, Taken
from attncheck.lint.launchers.options import names

VALUED: dict[str, frozenset[str]] = {
    "env": names("-u --unset -C --chdir -S --split-string"),
    "nohup": frozenset(),
    "exec": names("-a"),
    "command": frozenset(),
    "time": names("-f --format -o --output"),
    "nice": names("-n --adjustment"),
    "ionice": names("-c --class -n --classdata"),
    "stdbuf": names("-i -o -e --input --output --error"),
    "setsid": frozenset(),
    "unbuffer": frozenset(),
    "catchsegv": frozenset(),
    "sudo": names("-u --user -g --group -h --host -C -D -p --prompt -r -t -T -U"),
    "numactl": names("-i --interleave -p --preferred -m --membind -N --cpunodebind -C --physcpubind --preferred-many"),
    "taskset": frozenset(),
    "timeout": names("-k --kill-after -s --signal"),
    "chrt": frozenset(),
    "xvfb-run": names("-n -s --server-num --server-args -e -f"),
    "nsys": names("-o --output -t --trace -d --duration -y --delay -s --sample -c --capture-range"),
}
OPERANDS = {"timeout": 1, "taskset": 1, "chrt": 1}  # words of its own before the command
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
VALUED_LATER = {"nsys": "profile"}


def take(words: Sequence[Word]) -> Taken | None:
    """Return the command behind the prefix, and what `env` and `sudo` set for it."""
    name = words[0].text.rsplit("/", 1)[-1] if words else ""
    if name not in VALUED or (name in VALUED_LATER and (len(words) < 2 or words[1].text != VALUED_LATER[name])):
        return None
    at = 2 if name in VALUED_LATER else 1
    while at < len(words) and words[at].text.startswith("-"):
        option = words[at].text
        at += 1
        if option == "--":
            break
        if option in VALUED[name] or (name == "taskset" and option in ("-c", "--cpu-list")):
            at += 0 if name == "taskset" else 1
    at += OPERANDS.get(name, 0)
    environ: dict[str, str] = {}
    while name in ("env", "sudo") and at < len(words) and (pair := ASSIGNMENT.fullmatch(words[at].text)):
        environ[pair[1]] = pair[2]
        at += 1
    return Taken(tuple(words[at:]), environ) if at < len(words) else None


LAUNCHER = Launcher("prefix", take)
