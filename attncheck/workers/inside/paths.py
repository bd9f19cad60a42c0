"""Names of files as the user gave them: a worker does not start where the user works."""

import os

from attncheck.workers.process import FOLDER_VARIABLE


def user_path(name: str) -> str:
    """Return `name` as a path from where the user works, if there is a file or folder; else as it is."""
    path = os.path.join(os.environ.get(FOLDER_VARIABLE, ""), os.path.expanduser(name))
    return path if name and os.path.exists(path) else name
