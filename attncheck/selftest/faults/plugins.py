"""Puts packages before the environment's: backends as from a user's plugin, and code that runs at startup."""

import textwrap
from pathlib import Path

from attncheck.selftest.faults import Sandbox, SandboxAction

SOURCE_HEAD = """
import os, signal, sys, time
from dataclasses import replace
from attncheck.attention.backend import Backend, Installed, Outputs

SETTINGS = {}
"""


def with_backend(name: str, source: str) -> SandboxAction:
    """Return the action that installs and measures the backend `name`; its module `source` ends in a `BACKEND`."""

    def inject(sandbox: Sandbox) -> None:
        module = f"{name}_plugin"
        folder = add_package(sandbox, module, "1.0", SOURCE_HEAD + textwrap.dedent(source))
        (folder / f"{module}-1.0.dist-info/entry_points.txt").write_text(f"[attncheck.backends]\n{name} = {module}\n")
        sandbox.arguments += ["--backend", name]

    return inject


def add_package(sandbox: Sandbox, name: str, version: str, source: str = "", folder: str = "packages") -> Path:
    """Add a distribution of one module before all others of the check, and return its folder."""
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    path = sandbox.write_file(f"{folder}/{name}-{version}.dist-info/METADATA", metadata).parents[1]
    sandbox.write_file(f"{folder}/{name}/__init__.py", source)
    if str(path) not in (sandbox.environ.get("PYTHONPATH") or ""):
        sandbox.prepend_pythonpath(path)
    return path


def add_sitecustomize(sandbox: Sandbox, source: str) -> None:
    """Add code that every interpreter of the check runs when it starts."""
    sandbox.write_file("start/sitecustomize.py", textwrap.dedent(source))
    sandbox.prepend_pythonpath(sandbox.folder / "start")


def add_import_hook(sandbox: Sandbox, module: str, source: str) -> None:
    """Add code that every interpreter of the check runs right after it imports `module`, under the name `module`."""
    hook = IMPORT_HOOK.format(module=module, source=textwrap.dedent(source))
    add_sitecustomize(sandbox, hook)


IMPORT_HOOK = '''
import importlib.abc, importlib.util, sys

SOURCE = """{source}"""

class InjectingLoader(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name != "{module}":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None:
            self.genuine, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec):
        return self.genuine.create_module(spec)

    def exec_module(self, module):
        module.__spec__.loader = module.__loader__ = self.genuine
        self.genuine.exec_module(module)
        exec(compile(SOURCE, "<planted>", "exec"), {{"module": module}})

sys.meta_path.insert(0, InjectingLoader())
'''
