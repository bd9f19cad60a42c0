"""srun: one process per task, on the requested nodes.

Options as in slurm 26.11 src/common/slurm_opt.c (those with `set_func` or `set_func_srun`; an optional value follows
"="), and the `--container-…` options of NVIDIA's pyxis, args.c.
"""

from collections.abc import Sequence

from attncheck.lint.launchers import Absent, Fact, Known, Launcher, ParsedLauncher, Unreadable, Word
from attncheck.lint.launchers.options import (
    LeadingOptions,
    parse_count,
    parse_leading_options,
    program_name,
    split_names,
)

VALUE_OPTIONS = split_names(
    "-A --accel-bind --account --acctg-freq --autocomplete -B -b --bb --bbf --bcast-exclude --begin -C -c --chdir "
    "--cluster --cluster-constraint --clusters --comment --constraint --container --container-env --container-id "
    "--container-image --container-mounts --container-name --container-save --container-unshare --container-workdir "
    "--context --core-spec --cores-per-socket --cpu-bind --cpu-freq --cpu_bind --cpus-per-gpu --cpus-per-task -D -d "
    "--deadline --delay-boot --dependency --distribution -e --epilog --error --exclude --export --extra "
    "--extra-node-info -F -G --gpu-bind --gpu-freq --gpus --gpus-per-node --gpus-per-socket --gpus-per-task --gres "
    "--gres-flags --het-group --hint -i --ignore-signals --input -J --job-name --jobid -L --licenses -M -m "
    "--mail-type --mail-user --mcs-label --mem --mem-bind --mem-per-cpu --mem-per-gpu --mem-update --mincpus --mpi "
    "--msg-timeout -N -n --network --nodefile --nodelist --nodes --ntasks --ntasks-per-core --ntasks-per-gpu "
    "--ntasks-per-node --ntasks-per-socket --ntasks-per-tres -o --open-mode --output -p --pack-group --partition "
    "--prefer --priority --profile --prolog -q --qos -r --relative --reservation --resources --runtime -S --segment "
    "--signal --slurmd-debug --sockets-per-node --switches -T -t --task-epilog --task-prolog --tasks-per-node "
    "--thread-spec --threads --threads-per-core --time --time-min --tmp --treewidth --tres-bind --tres-per-task -W -w "
    "--wait --wckey -x"
)
SWITCHES = split_names(
    "--async --bcast --compress --consolidate-segments --container-entrypoint --container-entrypoint-log "
    "--container-mount-home --container-readonly --container-remap-root --container-writable --contiguous "
    "--debugger-test --disable-status -E --exact --exclusive --external-launcher -H -h --help --hold -I --immediate "
    "--interactive -K -k --kill-on-bad-exit -l --label --multi-prog --nice --no-allocate --no-container-entrypoint "
    "--no-container-mount-home --no-container-remap-root --no-kill -O --oom-kill-step --overcommit --overlap "
    "--oversubscribe --parsable --preserve-env --propagate --pty -Q --quiet --quit-on-interrupt --reboot --resv-ports "
    "-s --send-libs --spread-job --spread-segments --stepmgr --test-only -u --unbuffered --usage --use-min-nodes -V "
    "-v --verbose --version --wait-for-children --whole -X --x11 -Z"
)


def parse(words: Sequence[Word]) -> ParsedLauncher | None:
    """Return the parsed `srun`; None for any other command."""
    if not words or program_name(words[0]) != "srun":
        return None
    options = parse_leading_options(words[1:], VALUE_OPTIONS, SWITCHES)
    nodes = _parse_nodes(options)
    return ParsedLauncher(
        options.rest, _parse_exports(options), nodes, _parse_tasks_per_node(options, nodes), notes=options.notes
    )


def _parse_nodes(options: LeadingOptions) -> Fact[int]:
    word = options.values.get("--nodes") or options.values.get("-N")
    if word is not None and word.known and "-" in word.text:
        low, _, high = word.text.partition("-")
        return Known(int(low)) if low == high and low.isdecimal() else Unreadable(f"--nodes {word.text} is a range")
    return parse_count(word, "--nodes", Absent("srun takes as many nodes as the allocation has"))


def _parse_tasks_per_node(options: LeadingOptions, nodes: Fact[int]) -> Fact[int]:
    per_node = options.values.get("--ntasks-per-node") or options.values.get("--tasks-per-node")
    if per_node is not None:
        return parse_count(per_node, "--ntasks-per-node", Absent())
    total_tasks = parse_count(options.values.get("--ntasks") or options.values.get("-n"), "--ntasks", Absent())
    if isinstance(total_tasks, Known) and isinstance(nodes, Known):
        return Known(max(total_tasks.value // nodes.value, 1))
    return (
        Absent()
        if isinstance(total_tasks, Absent)
        else Unreadable("--ntasks counts all nodes, and their number is unknown")
    )


def _parse_exports(options: LeadingOptions) -> dict[str, str]:
    """Return the variables that "--export=ALL,NAME=value" sets."""
    assignments = (pair.partition("=") for pair in options.text("--export").split(",") if "=" in pair)
    return {name: text for name, _, text in assignments}


LAUNCHER = Launcher("srun", parse)
