"""deepspeed, DeepSpeed's own launcher.

Options as in deepspeed 0.19.8 launcher/runner.py:46-209 (parse_args); every GPU of the node where neither
`--num_gpus` nor `--include` says otherwise (runner.py:90), and this node alone without a hostfile (:212).
"""

from __future__ import annotations

from collections.abc import Sequence

from attncheck.core.facts import Absent, Fact, Known
from attncheck.core.launch import Word
from attncheck.lint.launchers import Launcher, Taken
from attncheck.lint.launchers.options import EVERY_GPU, Front, base, count, front, names

VALUED = names(
    "-H --hostfile -i --include -e --exclude --num_nodes --num_gpus --num_accelerators --master_port --master_addr "
    "--node_rank --launcher --launcher_args --enable_each_rank_log --autotuning --bind_core_list --ssh_port "
    "--venv_script --log_level --min_elastic_nodes --max_elastic_nodes"
)
SWITCHES = names(
    "--module --no_python --no_local_rank --no_ssh --no_ssh_check --force_multi --save_pid --bind_cores_to_rank -q "
    "--quiet --elastic_training"
)


def take(words: Sequence[Word]) -> Taken | None:
    """Return what deepspeed is told."""
    if not words or base(words[0]) not in ("deepspeed", "deepspeed.pt", "deepspeed.launcher.runner"):
        return None
    options = front(words[1:], VALUED, SWITCHES)
    nodes, processes = _included(options) or _counted(options)
    return Taken(options.rest, {}, nodes, processes, module="--module" in options.values, notes=options.notes)


def _counted(options: Front) -> tuple[Fact[int], Fact[int]]:
    hosts = options.text("--hostfile") or options.text("-H")
    here: Fact[int] = Absent(f"the hostfile {hosts} says how many nodes") if hosts else Known(1)
    gpus = options.values.get("--num_gpus") or options.values.get("--num_accelerators")
    every: Fact[int] = Absent(f"deepspeed without --num_gpus: {EVERY_GPU}")
    return count(options.values.get("--num_nodes"), "--num_nodes", here), count(gpus, "--num_gpus", every)


def _included(options: Front) -> tuple[Fact[int], Fact[int]] | None:
    """Read "worker-0@worker-1:0,2": hosts, and the GPUs taken of each."""
    word = options.values.get("--include") or options.values.get("-i")
    if word is None or not word.known or not word.text:
        return None
    slots = [host.partition(":")[2] for host in word.text.split("@")]
    counts = {len(set(one.split(","))) if one else 0 for one in slots}
    if len(counts) > 1:
        return Known(len(slots)), Absent(f"--include {word.text}: not as many on each node")
    number = counts.pop()
    every: Fact[int] = Absent(f"--include {word.text}: {EVERY_GPU}")
    return Known(len(slots)), Known(number) if number else every


LAUNCHER = Launcher("deepspeed", take)
