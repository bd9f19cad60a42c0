"""Resolves file names as the user gave them, because a worker does not start in the user's folder."""

import os

from attncheck.workers.process import FOLDER_VARIABLE


def user_path(name: str) -> str:
    """Return `name` as a path from the user's working folder if it is a file or folder, otherwise unchanged."""
    path = os.path.join(os.environ.get(FOLDER_VARIABLE, ""), os.path.expanduser(name))
    return path if name and os.path.exists(path) else name
