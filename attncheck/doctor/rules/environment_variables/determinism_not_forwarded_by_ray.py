"""Determinism variables set in this shell do not reach the framework's Ray workers.

What it checks: which determinism variables are set here, compared with those that the installed OpenRLHF or verl
passes to its Ray workers. OpenRLHF 0.11.2 passes none of them; verl 0.9.1 passes PYTHONHASHSEED,
CUBLAS_WORKSPACE_CONFIG, FLASH_ATTENTION_DETERMINISTIC, NCCL_DETERMINISTIC and NCCL_ALGO.

Why it matters: workers inherit the environment of the raylet, not of the shell that submits the job. The job runs but
is not reproducible. If the raylet was started from this shell, it has the variables and nothing is wrong.

What to do: pass them to `ray job submit --runtime-env-json`, or export them before `ray start` on every node.

Source: openrlhf 0.11.2 `cli/train_ppo_ray.py` (the `env_vars` of `ray.init`); verl 0.9.1 `trainer/constants_ppo.py`
`get_ppo_ray_runtime_env`; OpenRLHF#1138.
"""

import json

from attncheck.doctor.queries.launch import locate_variables
from attncheck.doctor.rules import Fix, Problem, Problems, Rule, Snapshot

WATCHED_VARIABLES = (
    "FLASH_ATTENTION_DETERMINISTIC",
    "CUBLAS_WORKSPACE_CONFIG",
    "VERL_DISABLE_FLASH_ATTN_CE",
    "NCCL_ALGO",
    "NCCL_PROTO",
    "NCCL_DETERMINISTIC",
    "NVTE_ALLOW_NONDETERMINISTIC_ALGO",
)
# Set alone, these tune speed or memory and do not request determinism.
TUNING_VARIABLES = frozenset({"CUBLAS_WORKSPACE_CONFIG", "NCCL_ALGO", "NCCL_PROTO"})
# Framework -> the watched variables that it passes to its workers.
FORWARDED_VARIABLES: dict[str, frozenset[str]] = {
    "openrlhf": frozenset(),
    "verl": frozenset({"CUBLAS_WORKSPACE_CONFIG", "FLASH_ATTENTION_DETERMINISTIC", "NCCL_DETERMINISTIC", "NCCL_ALGO"}),
}


def check(snapshot: Snapshot) -> Problems:
    variables = {name: snapshot.environ[name] for name in WATCHED_VARIABLES if name in snapshot.environ}
    if not set(variables) - TUNING_VARIABLES:
        return
    for framework, forwarded in FORWARDED_VARIABLES.items():
        not_forwarded = {name: value for name, value in variables.items() if name not in forwarded}
        if not_forwarded and snapshot.has(framework):
            argument = json.dumps({"env_vars": not_forwarded})
            yield Problem(
                message=f"{framework} does not forward {', '.join(not_forwarded)} to its Ray workers",
                subject=framework,
                evidence=tuple(f"environment: {name}={value}" for name, value in not_forwarded.items()),
                fixes=(Fix("forward them yourself", "setting", f"ray job submit --runtime-env-json='{argument}'"),),
                predicted=True,
                locations=locate_variables(snapshot, *not_forwarded),
            )


RULE = Rule("ATN703", "warning", check, needs=frozenset({"rl"}))
