"""Runs training scripts under the watcher in forks of a process that has imported torch and transformers once.

A line of JSON on standard input starts the ranks of one launch, {"argv", "environ", "watch", "ranks"}; a line on
standard output says how they ended, {"statuses", "errors"}.
"""

from __future__ import annotations

import atexit
import json
import os
import runpy
import signal
import socket
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import torch
import transformers.modeling_utils
import transformers.models.llama.modeling_llama  # noqa: F401  (what every fork would import)

from attncheck.rehearsal.execution import list_waits
from attncheck.rehearsal.watcher import hooks, waiting

RANK_SECONDS = 120
waiting.STILL_SECONDS = 8.0


def run_rank(request: dict[str, Any], environ: dict[str, str], errors: str) -> int:
    """Run the script as one rank and return its exit status."""
    os.environ.update(environ)
    descriptor = os.open(errors, os.O_WRONLY | os.O_CREAT, 0o600)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    hooks.install(request["watch"])
    sys.argv = request["argv"]
    try:
        runpy.run_path(request["argv"][0], run_name="__main__")
    except SystemExit as ending:
        return int(ending.code or 0)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def fork_rank(request: dict[str, Any], environ: dict[str, str], errors: str) -> int:
    """Return the process id of a rank."""
    process = os.fork()
    if process:
        return process
    status = 1
    signal.alarm(RANK_SECONDS)  # a rank whose peer no longer exists would wait for half an hour
    try:
        status = run_rank(request, environ, errors)
        atexit._run_exitfuncs()
        sys.stderr.flush()
    finally:
        os._exit(status)


def wait_for_ranks(processes: list[int], watch: str) -> list[int]:
    """Return the exit statuses of the ranks, which are stopped if all wait for each other."""
    statuses: dict[int, int] = {}
    while len(statuses) < len(processes):
        for process in processes:
            ended, status = (0, 0) if process in statuses else os.waitpid(process, os.WNOHANG)
            if ended:
                statuses[process] = os.waitstatus_to_exitcode(status)
            elif process not in statuses and list_waits(watch):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.02)
    return [statuses[process] for process in processes]


def find_port() -> int:
    """Return a free port."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def main() -> None:
    """Serve launches until standard input ends."""
    torch.set_num_threads(1)
    for line in sys.stdin:
        request = json.loads(line)
        ranks, files, processes = int(request["ranks"]), [], []
        port = find_port()
        for rank in range(ranks):
            environ = dict(request["environ"])
            if ranks > 1:
                environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
                environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
            files.append(f"{request['watch']}/errors-{rank}")
            processes.append(fork_rank(request, environ, files[-1]))
        statuses = wait_for_ranks(processes, request["watch"])
        errors = [Path(path).read_text()[-2000:] for path in files]
        print(json.dumps({"statuses": statuses, "errors": errors}), flush=True)


if __name__ == "__main__":
    main()
