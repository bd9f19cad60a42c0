"""ray job submit.

Options as in ray 2.60.0 dashboard/modules/job/cli.py:111-216, cli_utils.py:31-47 and
autoscaler/_private/cli_logger.py:782; `env_vars` are the job's environment (runtime_env/runtime_env.py).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from attncheck.core.facts import Absent, Fact
from attncheck.core.launch import Word
from attncheck.lint.launchers import Launcher, Taken
from attncheck.lint.launchers.options import base, front, names

VALUED = names(
    "--address --job-id --submission-id --runtime-env --runtime-env-json --working-dir --metadata-json "
    "--entrypoint-num-cpus --entrypoint-num-gpus --entrypoint-memory --entrypoint-resources "
    "--entrypoint-label-selector --verify --headers --log-style --log-color"
)
SWITCHES = names("--no-wait -v --verbose")
SCATTERED: Fact[int] = Absent("Ray places the processes, as the program asks it to")


def take(words: Sequence[Word]) -> Taken | None:
    """Return what a submitted job is told."""
    if not words or base(words[0]) != "ray" or [word.text for word in words[1:3]] != ["job", "submit"]:
        return None
    options = front(words[3:], VALUED, SWITCHES, abbreviated=False)
    environ, notes = _environ(options.text("--runtime-env-json"))
    if "--runtime-env" in options.values:
        notes = (*notes, f"the runtime environment {options.text('--runtime-env')} is not read")
    return Taken(options.rest, environ, SCATTERED, SCATTERED, notes=(*options.notes, *notes))


def _environ(text: str) -> tuple[Mapping[str, str], tuple[str, ...]]:
    if not text:
        return {}, ()
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}, ("--runtime-env-json could not be read as JSON",)
    given = found.get("env_vars") if isinstance(found, dict) else None
    return {str(key): str(one) for key, one in given.items()} if isinstance(given, dict) else {}, ()


LAUNCHER = Launcher("ray", take)
