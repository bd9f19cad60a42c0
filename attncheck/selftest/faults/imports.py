"""A torch that raises, crashes or hangs when doctor's probe imports it, and an attncheck plugin that raises."""

from attncheck.selftest.faults import Family, Fault, Sandbox, SandboxAction
from attncheck.selftest.faults.plugins import add_package

DIES = "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n"
HANGS = "import time\nwhile True:\n    time.sleep(1)\n"
NO_LIBRARY = "raise ImportError('libcudart.so.13: cannot open shared object file: No such file or directory')\n"


def setup_imports(sandbox: Sandbox) -> None:
    """Put a healthy torch of two lines first on the path, and make doctor import it."""
    add_package(sandbox, "torch", "2.11.0", "__version__ = '2.11.0'\n")
    sandbox.arguments += ["doctor", "--python", sandbox.python, "--lane", "import", "--select", "ATN102"]
    sandbox.arguments += ["--select", "ATN902", "--timeout", "4", "--format", "json"]


def with_torch(source: str) -> SandboxAction:
    """Return the action that writes torch's module."""
    return lambda sandbox: sandbox.write_file("packages/torch/__init__.py", source)


def add_broken_plugin(sandbox: Sandbox) -> None:
    """Add a plugin with a rule that raises when it is loaded."""
    folder = add_package(sandbox, "broken_rule", "1.0", "raise RuntimeError('of another attncheck')\n")
    (folder / "broken_rule-1.0.dist-info/entry_points.txt").write_text("[attncheck.rules]\nbroken = broken_rule\n")


IMPORTS = Family("imports", "doctor on a torch that can be imported", setup_imports, ("linux",))


def make_fault(name: str, code: str, title: str, imitates: str, inject: SandboxAction, *mentions: str) -> Fault:
    """Return a fault in an import."""
    return Fault(name, IMPORTS, (code,), title, imitates, inject, mentions)


FAULTS = (
    make_fault("plugin-broken", "ATN902", "an extension of attncheck that raises when it is loaded",
               "a plugin for a different version", add_broken_plugin, "broken_rule"),
    make_fault("import-raises", "ATN102", "a torch whose import misses libcudart.so.13", "a CUDA package removed",
               with_torch(NO_LIBRARY), "libcudart.so.13"),
    make_fault("import-dies", "ATN102", "a torch that crashes when it is imported", "another build of a library",
               with_torch(DIES), "SIGSEGV"),
    make_fault("import-hangs", "ATN102", "a torch whose import never ends", "a network file system that stalls",
               with_torch(HANGS), "had not ended"),
)  # fmt: skip
