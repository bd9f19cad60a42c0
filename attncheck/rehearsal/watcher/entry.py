"""Enters a process at its start, as the `sitecustomize` that Python imports; then runs the user's own.

No error here may end the trainer: if the watcher cannot enter, it records the reason and lets the trainer run.
"""

import os
import sys


def _enter_watcher():  # type: ignore[no-untyped-def]
    try:
        open(os.path.join(os.environ["ATTNCHECK_WATCH"], "entered"), "a").close()
        from attncheck_watcher import hooks  # type: ignore[import-not-found]

        hooks.install(os.environ["ATTNCHECK_WATCH"])
    except Exception as error:
        with open(os.path.join(os.environ["ATTNCHECK_WATCH"], "watcher-failed"), "a") as stream:
            stream.write(f"{type(error).__name__}: {error}\n")


def _run_next_sitecustomize(folder):  # type: ignore[no-untyped-def]
    """Run the `sitecustomize` that Python would have imported without the watcher."""
    import importlib.util
    from importlib.machinery import PathFinder

    others = [entry for entry in sys.path if os.path.abspath(entry or ".") != folder]
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


if "ATTNCHECK_WATCH" in os.environ:
    _enter_watcher()
    sys.path += filter(None, os.environ.get("ATTNCHECK_PROJECT", "").split(os.pathsep))
_run_next_sitecustomize(os.path.dirname(os.path.abspath(__file__)))
