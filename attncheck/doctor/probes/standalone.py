"""Writes the probe as one Python file, for an environment in which nothing can be installed."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from attncheck import __version__
from attncheck.core.io import secrets
from attncheck.core.snapshot import SCHEMA_VERSION
from attncheck.doctor.probes import bundle
from attncheck.doctor.probes.collect import Lane, make_request
from attncheck.workers.child import BOOTSTRAP
from attncheck.workers.process import CHILD_ENVIRONMENT

# Python 2 must be able to parse all of this, so that it can report that it is too old.
HEAD = '''\
#!/usr/bin/env python3
# -*- coding: utf-8 -*-
"""The probe of attncheck @version@ in one file. It needs Python 3.8 or newer and nothing else.

    python probe.py > facts.json            with the Python whose environment is examined
    attncheck doctor --facts facts.json     where attncheck is installed

It leaves no file and sends nothing. facts.json holds no host name, user name, home path or token, and of the
environment variables only those on an allow-list. SOURCES are attncheck's own modules, as they are in its repository.
"""
import sys

sys.dont_write_bytecode = True
if sys.version_info < (3, 8):
    sys.exit("attncheck: this is Python %d.%d; the probe needs Python 3.8 or newer" % sys.version_info[:2])
import os

here = os.path.dirname(os.path.realpath(sys.argv[0]))
sys.path[:] = [entry for entry in sys.path if entry and os.path.realpath(entry) not in (here, os.getcwd())]
import json
from importlib.machinery import ModuleSpec

PLAN = json.loads(@plan@)
SOURCES = {}
'''
TAIL = """

class SourceImporter:
    def find_spec(self, name, path=None, target=None):
        return ModuleSpec(name, self, is_package=name in PACKAGES) if name in SOURCES else None

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        name = module.__name__
        exec(compile(SOURCES[name], "<" + name + ">", "exec"), module.__dict__)


def mask(name, text):
    return secrets.MASK if values.is_secret_value(name, text) else secrets.mask_secrets(text)


if __name__ == "__main__":
    PACKAGES = {name.rpartition(".")[0] for name in SOURCES}
    sys.meta_path.insert(0, SourceImporter())
    import @secrets@ as secrets
    import @secrets@.values as values
    from @payload@.standalone import main

    PLAN["sources"] = {name: text for name, text in SOURCES.items() if name.startswith("@payload@")}
    secrets.remember_settings(os.environ)
    sys.exit(main(PLAN, mask))
"""


def render_probe(lanes: Sequence[Lane], model: str | None, documents: dict[str, str] | None, seconds: float) -> str:
    """Return the text of a Python file that prints the output of `attncheck probe`."""
    plan = {
        "package": bundle.PACKAGE,
        "bootstrap": BOOTSTRAP,
        "environment": CHILD_ENVIRONMENT,
        "lanes": list(lanes),
        "request": make_request(lanes, model, documents, seconds),
        "snapshot": {"attncheck": __version__, "schema_version": SCHEMA_VERSION},
    }
    sources = {**bundle.payload_sources(), **_secrets_sources()}
    names = {"version": __version__, "plan": _quote(json.dumps(plan, indent=1)), "secrets": secrets.__name__}
    parts = [_fill(HEAD, names)]
    parts += [f"SOURCES[{json.dumps(name)}] = {_quote(text)}\n" for name, text in sources.items()]
    return "".join([*parts, _fill(TAIL, {**names, "payload": bundle.PACKAGE})])


def _secrets_sources() -> dict[str, str]:
    """Return the sources of the module that masks secrets, with empty parent packages."""
    package = secrets.__name__
    above = {package.rsplit(".", depth)[0]: "" for depth in range(package.count("."), 0, -1)}
    folder = Path(secrets.__path__[0])
    modules = {f"{package}.{path.stem}": path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.py"))}
    return {**above, package: modules.pop(f"{package}.__init__"), **modules}


def _quote(text: str) -> str:
    """Return a string literal that keeps the lines of a text, so that a reader sees what runs."""
    escaped = text.replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
    return f'"""\\\n{escaped}"""' if not text.endswith('"') else json.dumps(text)


def _fill(text: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    return text
