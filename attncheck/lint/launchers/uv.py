"""Runners of environments, which only find the program: uv run, uvx, poetry, pdm, pipenv, hatch, rye, pixi, conda.

Options that take a value: `uv run --help`, `uvx --help` of uv 0.13.8; of the others the few that name an environment.
"""

from __future__ import annotations

from collections.abc import Sequence

from attncheck.core.launch import Word
from attncheck.lint.launchers import Launcher, Taken
from attncheck.lint.launchers.options import base, front, names

UV = names(
    "--allow-insecure-host -b --build-constraints -C -c --cache-dir --color --config-file --config-setting "
    "--config-settings-package --constraints --default-index --directory --env-file --exclude-newer "
    "--exclude-newer-package --extra --extra-index-url -f --find-links --fork-strategy --from --group -i --index "
    "--index-strategy --index-url --keyring-provider --link-mode --no-binary-package --no-build-isolation-package "
    "--no-build-package --no-editable-package --no-extra --no-group --no-sources-package --only-group --overrides -P "
    "-p --package --prerelease --prerelease-package --project --python --python-platform --python-preference "
    "--refresh-package --reinstall-package --resolution --torch-backend --upgrade-group --upgrade-package -w --with "
    "--with-editable --with-requirements"
)
OTHERS = names("-n --name -p --prefix --cwd -e --environment --manifest-path --platform -d --env")
RUN = {"uv", "poetry", "pdm", "pipenv", "hatch", "rye", "pixi", "conda", "mamba", "micromamba"}


def take(words: Sequence[Word]) -> Taken | None:
    """Return the program behind the runner."""
    if not words:
        return None
    name = base(words[0])
    if name == "uvx":
        return Taken(front(words[1:], UV, frozenset(), abbreviated=False).rest)
    if name not in RUN:
        return None
    valued = UV if name == "uv" else OTHERS
    before = front(words[1:], valued - {"-e"} if name == "hatch" else valued, frozenset(), abbreviated=False).rest
    if not before or before[0].text != "run":
        return None
    if name == "hatch":
        return Taken(tuple(before[1:]))
    options = front(before[1:], valued, frozenset({"-m", "--module", "-s", "--script"}), abbreviated=False)
    return Taken(options.rest, module=name == "uv" and bool({"-m", "--module"} & set(options.values)))


LAUNCHER = Launcher("uv", take)
