"""Takes a launch over where its framework would start Ray: its configuration is composed and judged valid by then.

The launch's own command has run so far, with its own files and overrides. What is left of it runs as `torchrun` starts
it: the ranks of the actor, one process each.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from typing import Any


def take_over_verl(config_module: Any) -> None:
    """Go on with the driver once verl has judged a configuration valid.

    verl 0.9.1 trainer/main_ppo.py: `main` composes it by Hydra, then calls `validate_config`, then `run_ppo`, which
    starts Ray; `TaskRunnerV1.run` resolves it.
    """
    validate = config_module.validate_config

    @functools.wraps(validate)
    def validate_and_run(config: Any, *arguments: Any, **options: Any) -> None:
        from omegaconf import OmegaConf

        validate(config, *arguments, **options)
        path = os.path.join(os.environ["ATTNCHECK_WATCH"], "configuration.yaml")
        OmegaConf.save(config, path, resolve=True)
        sys.exit(run_ranks("attncheck_drivers.verl", path, config.trainer.n_gpus_per_node))

    config_module.validate_config = validate_and_run


def run_ranks(module: str, configuration: str, processes: int) -> int:
    """Run a driver in as many processes, and return their exit status."""
    environment = {name: value for name, value in os.environ.items() if name != "ATTNCHECK_DRIVER"}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    return subprocess.run([*torchrun, "-m", module, configuration], env=environment, check=False).returncode
