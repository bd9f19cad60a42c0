"""Reads faulthandler's stacks: where a process died, or whether a rank hangs or waits for others."""

import json
import os
import re
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from attncheck.workers.processor_time import read_process_state

SETTLED_SECONDS = 0.3  # a stack is complete after this long without a change
STACK_SECONDS = 5.0  # for a rank to write its stack, even on a busy machine
FATAL = "Fatal Python error: "
NEVER_WRITES = "TtZX"  # states: stopped, traced, ended
_FRAME = re.compile(r'File "([^"]+)", line (\d+) in (\S+)')
# Where a rank waits for others: torch's collectives, a request's wait, the all-gather of texts through the store.
_WAITING = re.compile(r"torch/distributed/(?!run)|in (?:wait|synchronize|all_gather_text)\b")


def collect_stacks(folder: Path) -> dict[int, str]:
    """Return the stack of each rank's main thread, as faulthandler prints it, by rank.

    The ranks' `rank-N.json` in `folder` name their process and thread; on SIGUSR1 each writes `stack-N.txt`. A rank
    that is stopped, or stuck in the kernel, writes none; one with little processor time needs a while.
    """
    ranks = [document for path in folder.glob("rank-*.json") if (document := _read_rank(path))]
    for rank in ranks:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(rank["pid"], signal.SIGUSR1)
    until, stacks = time.monotonic() + STACK_SECONDS, dict[int, str]()
    while time.monotonic() < until:
        time.sleep(SETTLED_SECONDS)
        earlier, stacks = stacks, {rank["rank"]: _read_stack(folder, rank) for rank in ranks}
        missing = [rank["pid"] for rank in ranks if not stacks[rank["rank"]]]
        if stacks == earlier and all(read_process_state(pid) in NEVER_WRITES for pid in missing):
            break
    return {rank: stack for rank, stack in stacks.items() if stack}


def is_waiting_for_peers(stack: str) -> bool:
    """Return whether the innermost frames of `stack`, as faulthandler prints it, wait for other ranks."""
    frames = [line for line in stack.splitlines() if line.strip().startswith("File")]
    return any(_WAITING.search(frame) for frame in frames[:3])


def innermost_frame(stack: str) -> str:
    """Return the running function, its file and line: "_flash_attn_forward (flash_attn/interface.py:91)"."""
    frames = _FRAME.findall(stack)
    return _describe_frame(*frames[0]) if frames else "a place unknown"


def describe_crash(stderr: str) -> tuple[str, str]:
    """Return where a fatal signal hit, "" if faulthandler wrote nothing, and the last line before it.

    torch's own frames are left out if there are others, because every compiled operator is called through
    `torch/_ops.py`.
    """
    before, fatal, rest = stderr.partition(FATAL)
    frames = _FRAME.findall(rest)
    known = [frame for frame in frames if "/torch/" not in frame[0]] or frames
    lines = before.strip().splitlines()
    if fatal and not frames:  # Python had not started to run anything
        lines = lines or [fatal + rest.partition("\n")[0]]
    return _describe_frame(*known[0]) if known else "", lines[-1][:300] if lines else ""


def _describe_frame(path: str, line: str, function: str) -> str:
    return f"{function} ({'/'.join(Path(path).parts[-2:])}:{line})"


def _read_rank(path: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError, KeyError, TypeError):
        document = json.loads(path.read_bytes())
        return {name: int(document[name]) for name in ("rank", "pid", "thread")}
    return {}


def _read_stack(folder: Path, rank: dict[str, Any]) -> str:
    with suppress(OSError):
        text = (folder / f"stack-{rank['rank']}.txt").read_text("utf-8", "replace")
        return _extract_thread(text, rank["thread"])
    return ""


def _extract_thread(text: str, ident: int) -> str:
    """Return the frames of one thread from faulthandler's dump, innermost first."""
    for part in re.split(r"\n(?=(?:Current thread|Thread) 0x)", "\n" + text):
        heading = re.match(r"\s*(?:Current thread|Thread) 0x([0-9a-f]+)", part)
        if heading and int(heading[1], 16) == ident:
            return part
    return ""
