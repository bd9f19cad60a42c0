"""Environment runners, which only find the program: uv run, uvx, poetry, pdm, pipenv, hatch, rye, pixi, conda.

Options that take a value: `uv run --help`, `uvx --help` of uv 0.13.8; for the others, the few that name an environment.
"""

from collections.abc import Sequence

from attncheck.lint.launchers import Launcher, ParsedLauncher, Word
from attncheck.lint.launchers.options import parse_leading_options, program_name, split_names

UV_VALUE_OPTIONS = split_names(
    "--allow-insecure-host -b --build-constraints -C -c --cache-dir --color --config-file --config-setting "
    "--config-settings-package --constraints --default-index --directory --env-file --exclude-newer "
    "--exclude-newer-package --extra --extra-index-url -f --find-links --fork-strategy --from --group -i --index "
    "--index-strategy --index-url --keyring-provider --link-mode --no-binary-package --no-build-isolation-package "
    "--no-build-package --no-editable-package --no-extra --no-group --no-sources-package --only-group --overrides -P "
    "-p --package --prerelease --prerelease-package --project --python --python-platform --python-preference "
    "--refresh-package --reinstall-package --resolution --torch-backend --upgrade-group --upgrade-package -w --with "
    "--with-editable --with-requirements"
)
OTHER_VALUE_OPTIONS = split_names("-n --name -p --prefix --cwd -e --environment --manifest-path --platform -d --env")
RUNNERS = {"uv", "poetry", "pdm", "pipenv", "hatch", "rye", "pixi", "conda", "mamba", "micromamba"}


def parse(words: Sequence[Word]) -> ParsedLauncher | None:
    """Return the command after the runner; None for any other command."""
    if not words:
        return None
    name = program_name(words[0])
    if name == "uvx":
        return ParsedLauncher(parse_leading_options(words[1:], UV_VALUE_OPTIONS, frozenset(), allow_abbrev=False).rest)
    if name not in RUNNERS:
        return None
    value_options = UV_VALUE_OPTIONS if name == "uv" else OTHER_VALUE_OPTIONS
    subcommand = parse_leading_options(
        words[1:], value_options - {"-e"} if name == "hatch" else value_options, frozenset(), allow_abbrev=False
    ).rest
    if not subcommand or subcommand[0].text != "run":
        return None
    if name == "hatch":
        return ParsedLauncher(tuple(subcommand[1:]))
    options = parse_leading_options(
        subcommand[1:], value_options, frozenset({"-m", "--module", "-s", "--script"}), allow_abbrev=False
    )
    return ParsedLauncher(options.rest)


LAUNCHER = Launcher("uv", parse)
