"""torchrun, `python -m torch.distributed.run` and `python -m torch.distributed.launch`.

Options as in torch 2.13.0 distributed/run.py:410-721 (get_args_parser) and distributed/launch.py:170; one node and
one process by default (run.py:429, 437); "gpu", "auto": run.py:745.
"""

from collections.abc import Sequence

from attncheck.lint.launchers import Known, Launcher, ParsedLauncher, Unreadable, Word
from attncheck.lint.launchers.options import parse_count, parse_leading_options, program_name, split_names

VALUE_OPTIONS = split_names(
    "--nnodes --nproc_per_node --rdzv_backend --rdzv_endpoint --rdzv_id --rdzv_conf --max_restarts --monitor_interval "
    "--start_method --event_log_handler --role --log_dir -r --redirects -t --tee --local_ranks_filter "
    "--duplicate_stdout_filters --duplicate_stderr_filters --node_rank --master_addr --master_port --local_addr "
    "--logs_specs --numa_binding --signals_to_handle --shutdown_timeout"
)
SWITCHES = split_names("--standalone -m --module --no_python --run_path --virtual_local_rank --use_env")
NAMES = ("torchrun", "torch.distributed.run", "torch.distributed.launch", "torch-distributed-run")


def parse(words: Sequence[Word]) -> ParsedLauncher | None:
    """Return the parsed `torchrun`; None for any other command."""
    if not words or program_name(words[0]) not in NAMES:
        return None
    options = parse_leading_options(words[1:], VALUE_OPTIONS, SWITCHES, fold_hyphens=True)
    nodes = parse_count(options.values.get("--nnodes"), "--nnodes", Known(1))
    if ":" in options.text("--nnodes"):
        low, _, high = options.text("--nnodes").partition(":")
        nodes = Known(int(low)) if low == high and low.isdecimal() else Unreadable(f"--nnodes {low}:{high} is elastic")
    return ParsedLauncher(
        words=options.rest,
        nodes=nodes,
        processes=parse_count(options.values.get("--nproc_per_node"), "--nproc_per_node", Known(1)),
        notes=options.notes,
    )


LAUNCHER = Launcher("torchrun", parse)
