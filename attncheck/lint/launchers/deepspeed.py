"""deepspeed, DeepSpeed's own launcher.

Options as in deepspeed 0.19.8 launcher/runner.py:46-209 (parse_args). It uses every GPU of the node unless `--num_gpus`
or `--include` says otherwise (runner.py:90), and only this node if there is no hostfile (:212).
"""

from collections.abc import Sequence

from attncheck.lint.launchers import Absent, Fact, Known, Launcher, ParsedLauncher, Word
from attncheck.lint.launchers.options import (
    EVERY_GPU,
    LeadingOptions,
    parse_count,
    parse_leading_options,
    program_name,
    split_names,
)

VALUE_OPTIONS = split_names(
    "-H --hostfile -i --include -e --exclude --num_nodes --num_gpus --num_accelerators --master_port --master_addr "
    "--node_rank --launcher --launcher_args --enable_each_rank_log --autotuning --bind_core_list --ssh_port "
    "--venv_script --log_level --min_elastic_nodes --max_elastic_nodes"
)
SWITCHES = split_names(
    "--module --no_python --no_local_rank --no_ssh --no_ssh_check --force_multi --save_pid --bind_cores_to_rank -q "
    "--quiet --elastic_training"
)


def parse(words: Sequence[Word]) -> ParsedLauncher | None:
    """Return the parsed `deepspeed` launcher; None for any other command."""
    if not words or program_name(words[0]) not in ("deepspeed", "deepspeed.pt", "deepspeed.launcher.runner"):
        return None
    options = parse_leading_options(words[1:], VALUE_OPTIONS, SWITCHES)
    nodes, processes = _parse_include(options) or _parse_counts(options)
    return ParsedLauncher(options.rest, {}, nodes, processes, notes=options.notes)


def _parse_counts(options: LeadingOptions) -> tuple[Fact[int], Fact[int]]:
    hostfile = options.text("--hostfile") or options.text("-H")
    default_nodes: Fact[int] = Absent(f"the hostfile {hostfile} sets the number of nodes") if hostfile else Known(1)
    gpus = options.values.get("--num_gpus") or options.values.get("--num_accelerators")
    default_processes: Fact[int] = Absent(f"deepspeed without --num_gpus: {EVERY_GPU}")
    nodes = parse_count(options.values.get("--num_nodes"), "--num_nodes", default_nodes)
    return nodes, parse_count(gpus, "--num_gpus", default_processes)


def _parse_include(options: LeadingOptions) -> tuple[Fact[int], Fact[int]] | None:
    """Return nodes and processes per node of "--include worker-0@worker-1:0,2": hosts, and the GPUs used on each."""
    word = options.values.get("--include") or options.values.get("-i")
    if word is None or not word.known or not word.text:
        return None
    slots = [host.partition(":")[2] for host in word.text.split("@")]
    counts = {len(set(slot.split(","))) if slot else 0 for slot in slots}
    if len(counts) > 1:
        return Known(len(slots)), Absent(f"--include {word.text}: nodes have different numbers of GPUs")
    gpu_count = counts.pop()
    default_processes: Fact[int] = Absent(f"--include {word.text}: {EVERY_GPU}")
    return Known(len(slots)), Known(gpu_count) if gpu_count else default_processes


LAUNCHER = Launcher("deepspeed", parse)
