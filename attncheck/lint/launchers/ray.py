"""ray job submit.

Options as in ray 2.60.0 dashboard/modules/job/cli.py:111-216, cli_utils.py:31-47 and
autoscaler/_private/cli_logger.py:782; `env_vars` are the job's environment (runtime_env/runtime_env.py).
"""

import json
import re
from collections.abc import Mapping, Sequence

from attncheck.lint.launchers import Absent, Fact, Launcher, ParsedLauncher, Word
from attncheck.lint.launchers.options import parse_leading_options, program_name, split_assignments, split_names

VALUE_OPTIONS = split_names(
    "--address --job-id --submission-id --runtime-env --runtime-env-json --working-dir --metadata-json "
    "--entrypoint-num-cpus --entrypoint-num-gpus --entrypoint-memory --entrypoint-resources "
    "--entrypoint-label-selector --verify --headers --log-style --log-color"
)
SWITCHES = split_names("--no-wait -v --verbose")
# the output of a command, whose text may have quotes: "$(cd "$(dirname "$0")" && pwd)"
SUBSTITUTION = re.compile(r"\$\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)")
PLACED_BY_RAY: Fact[int] = Absent("Ray places the processes as the program requests")


def parse(words: Sequence[Word]) -> ParsedLauncher | None:
    """Return the parsed `ray job submit`; None for any other command."""
    if not words or program_name(words[0]) != "ray" or [word.text for word in words[1:3]] != ["job", "submit"]:
        return None
    options = parse_leading_options(words[3:], VALUE_OPTIONS, SWITCHES, allow_abbrev=False)
    environ, notes = _parse_env_vars(options.text("--runtime-env-json"))
    variables, rest = split_assignments(options.rest)  # a shell runs the entrypoint
    return ParsedLauncher(
        words=rest,
        environ={**environ, **variables},
        nodes=PLACED_BY_RAY,
        processes=PLACED_BY_RAY,
        config_file=options.text("--runtime-env"),
        notes=(*options.notes, *notes),
    )


def _parse_env_vars(text: str) -> tuple[Mapping[str, str], tuple[str, ...]]:
    if not text:
        return {}, ()
    try:
        runtime_env = json.loads(SUBSTITUTION.sub(lambda match: json.dumps(match[0])[1:-1], text))
    except (ValueError, RecursionError):
        return {}, ("--runtime-env-json could not be read as JSON",)
    env_vars = runtime_env.get("env_vars") if isinstance(runtime_env, dict) else None
    return {str(key): str(value) for key, value in env_vars.items()} if isinstance(env_vars, dict) else {}, ()


LAUNCHER = Launcher("ray", parse)
