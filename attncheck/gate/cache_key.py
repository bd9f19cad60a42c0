"""The key under which a gate's answer is kept: a digest of everything that the answer depends on.

It covers a snapshot by the static lane, which takes a tenth of a second and imports nothing from the examined
environment, and the sizes and times of the installed packages' files; also the policy, the command, its working
directory and the machine. The user's files that the gate reads (the launch, the files that it names, models) are
remembered with the answer: see `attncheck.gate.inputs`.
"""

import hashlib
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from attncheck.core import codec
from attncheck.core.snapshot import Absent, Snapshot
from attncheck.doctor.probes.collect import collect_with_stamps
from attncheck.doctor.probes.keeping import describe_machine, identify_machine
from attncheck.gate.inputs import digest_file
from attncheck.gate.policy import Policy
from attncheck.gate.trust import describe_state
from attncheck.workers.execution import ExecutionTarget

# These differ between ranks, and do not affect the answer.
RANK_VARIABLES = ("RANK", "LOCAL_RANK", "GROUP_RANK", "NODE_RANK", "MASTER_PORT", "SLURM_PROCID", "SLURM_LOCALID")


def answer_key(policy: Policy, target: ExecutionTarget, argv: Sequence[str], date: str) -> str:
    """Return the key of the answer to `policy` about the command `argv` on `date` ("2026-11-21")."""
    python = None if target.python == sys.executable else target.python
    snapshot, stamps = collect_with_stamps(python, policy.timeout)
    parts = {
        "stamps": stamps,
        "snapshot": codec.to_plain(_without_what_varies(snapshot)),
        "policy": codec.to_plain(asdict(policy)),
        "trust": describe_state(policy),
        "expired": [allowance.code for allowance in policy.allowances if allowance.until < date],
        "baseline": digest_file(policy.baseline) if policy.baseline else "",
        "target": asdict(target),
        "job": _describe_target(policy.target),
        "argv": list(argv),
        "folder": os.getcwd(),
        "machine": [*identify_machine(), *describe_machine()],
    }
    text = json.dumps(parts, sort_keys=True, ensure_ascii=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _describe_target(text: str) -> dict[str, Any]:
    """Return the target of a policy with the contents of its files, which are read again at each start."""
    if not text:
        return {}
    from attncheck.doctor.target import parse_target

    return asdict(parse_target(text))


def _without_what_varies(snapshot: Snapshot) -> Snapshot:
    """Return a snapshot without values that differ between minutes or ranks."""
    environ = {name: value for name, value in snapshot.environ.items() if name not in RANK_VARIABLES}
    host = replace(snapshot.host, memory_available_bytes=Absent("it varies"))
    return replace(snapshot, taken="", host=host, environ=environ)
