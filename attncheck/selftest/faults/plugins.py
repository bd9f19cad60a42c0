"""Plants backends as a user's plugin would come: a folder with a module and the entry point that names it."""

from __future__ import annotations

import textwrap

from attncheck.selftest.faults import Ground, Plant

HEAD = """
import os, signal, sys, time
from dataclasses import replace
from attncheck.attention.backend import Backend, Found, Outputs

MORE = {}
"""


def backend(name: str, source: str) -> Plant:
    """Return what plants the backend `name`, whose module `source` ends in a `BACKEND`, and asks the check for it."""

    def plant(ground: Ground) -> None:
        folder = ground.folder / "plugins"
        ground.write(f"plugins/{name}_plugin.py", HEAD + textwrap.dedent(source))
        ground.write(f"plugins/{name}-1.0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        ground.write(
            f"plugins/{name}-1.0.dist-info/entry_points.txt", f"[attncheck.backends]\n{name} = {name}_plugin\n"
        )
        if str(folder) not in (ground.environ.get("PYTHONPATH") or ""):
            ground.before_all(folder)
        ground.words += ["--backend", name]

    return plant


def start_up(ground: Ground, source: str) -> None:
    """Plant code that every interpreter of the check runs when it starts."""
    ground.write("start/sitecustomize.py", textwrap.dedent(source))
    ground.before_all(ground.folder / "start")


def on_import(ground: Ground, module: str, source: str) -> None:
    """Plant code that runs in every interpreter of the check right after `module` was imported, as `module`."""
    hook = HOOK.format(module=module, source=textwrap.dedent(source))
    start_up(ground, hook)


HOOK = '''
import importlib.abc, importlib.util, sys

SOURCE = """{source}"""

class Spoiling(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name != "{module}":
            return None
        sys.meta_path.remove(self)
        found = importlib.util.find_spec(name)
        if found is not None:
            self.genuine, found.loader = found.loader, self
        return found

    def create_module(self, spec):
        return self.genuine.create_module(spec)

    def exec_module(self, module):
        module.__spec__.loader = module.__loader__ = self.genuine
        self.genuine.exec_module(module)
        exec(compile(SOURCE, "<planted>", "exec"), {{"module": module}})

sys.meta_path.insert(0, Spoiling())
'''
