"""Prefix commands, which only change how a command runs: env, nohup, exec, time, nice, numactl, sudo, timeout, screen.

So do modules that debug or profile a program: `python -m debugpy --listen 5678 train.py`. Options that take a value are
the usual ones of coreutils, util-linux, screen(1), numactl(8) and sudo(8), not of a particular version; those of
modules are read in debugpy 1.8.17 (server/cli.py), coverage 7.11.0 (cmdline.py) and Python 3.13 (cProfile, pdb).
"""

from collections.abc import Sequence

from attncheck.lint.launchers import Launcher, ParsedLauncher, Word
from attncheck.lint.launchers.options import split_assignments, split_names

VALUE_OPTIONS: dict[str, frozenset[str]] = {
    "env": split_names("-u --unset -C --chdir -S --split-string"),
    "nohup": frozenset(),
    "exec": split_names("-a"),
    "command": frozenset(),
    "time": split_names("-f --format -o --output"),
    "nice": split_names("-n --adjustment"),
    "ionice": split_names("-c --class -n --classdata"),
    "stdbuf": split_names("-i -o -e --input --output --error"),
    "setsid": frozenset(),
    "unbuffer": frozenset(),
    "catchsegv": frozenset(),
    "sudo": split_names("-u --user -g --group -h --host -C -D -p --prompt -r -t -T -U"),
    "numactl": split_names(
        "-i --interleave -p --preferred -m --membind -N --cpunodebind -C --physcpubind --preferred-many"
    ),
    "taskset": frozenset(),
    "timeout": split_names("-k --kill-after -s --signal"),
    "chrt": frozenset(),
    "screen": split_names("-S -dmS -DmS -c -h -p -s -t -T -e"),
    "flock": split_names("-w --wait --timeout -E --conflict-exit-code"),
    "xvfb-run": split_names("-n -s --server-num --server-args -e -f"),
    "nsys": split_names("-o --output -t --trace -d --duration -y --delay -s --sample -c --capture-range"),
    "debugpy": split_names("--listen --connect --log-to --adapter-access-token"),
    "pdb": split_names("-c --command"),
    "cProfile": split_names("-o --outfile -s --sort"),
    "coverage": split_names("--source --include --omit --rcfile --data-file --context --concurrency --save-signal"),
}
OPERAND_COUNTS = {"timeout": 1, "taskset": 1, "chrt": 1, "flock": 1}  # number of arguments before the command
SUBCOMMANDS = {"nsys": "profile", "coverage": "run"}


def parse(words: Sequence[Word]) -> ParsedLauncher | None:
    """Return the command after the prefix, and the variables that `env` and `sudo` set for it."""
    name = words[0].text.rsplit("/", 1)[-1] if words else ""
    if name not in VALUE_OPTIONS or (name in SUBCOMMANDS and (len(words) < 2 or words[1].text != SUBCOMMANDS[name])):
        return None
    index = 2 if name in SUBCOMMANDS else 1
    while index < len(words) and words[index].text.startswith("-"):
        option = words[index].text
        index += 1
        if option == "--":
            break
        if option in VALUE_OPTIONS[name] or (name == "taskset" and option in ("-c", "--cpu-list")):
            index += 0 if name == "taskset" else 1
    index += OPERAND_COUNTS.get(name, 0)
    environ, rest = split_assignments(words[index:]) if name in ("env", "sudo") else ({}, tuple(words[index:]))
    return ParsedLauncher(rest, environ) if rest else None


LAUNCHER = Launcher("prefix", parse)
