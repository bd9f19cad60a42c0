"""pip's configuration makes an install command do something else than it says.

What it checks: pip's effective settings and the interpreter, where pip is what would be used: `user` inside a virtual
environment, `target` or `prefix`, `no-index`, `only-binary` for flash-attn, `require-virtualenv` or an externally
managed interpreter outside one.

Why it matters: the commands that attncheck prints would fail, or install into another place than the one examined.

What to do: the finding names the setting; unset it for the command.

Source: pip 23.2.1, `_internal/commands/install.py` and `_internal/cli/req_command.py`; PEP 668.
"""

from __future__ import annotations

from collections.abc import Iterator

from attncheck.core.findings import Fix, Problem
from attncheck.core.snapshot import Snapshot
from attncheck.doctor.fixes import install
from attncheck.doctor.rules import Rule

_OFF = ("", "0", "false", "no", "off")


def check(snapshot: Snapshot) -> Iterator[Problem]:
    """Yield a problem for each setting that the printed commands would stumble over."""
    if install.installer(snapshot).startswith("uv "):
        return  # uv reads none of it
    for setting, effect in _traps(snapshot):
        value = snapshot.build_tools.pip_config.get(setting, "")
        yield Problem(
            message=f"pip is set to {setting}: {effect}",
            subject="pip",
            evidence=(f"pip's configuration: {setting} = {value}",),
            fixes=_lifted(snapshot, setting),
        )
    host = snapshot.host
    if snapshot.build_tools.externally_managed and not host.virtual_environment and not host.conda:
        yield Problem(
            message="this interpreter is managed by the operating system: pip refuses to install into it",
            subject="pip",
            evidence=("EXTERNALLY-MANAGED lies beside its standard library",),
            fixes=(_venv(snapshot),),
        )


def _lifted(snapshot: Snapshot, setting: str) -> tuple[Fix, ...]:
    """Return what overrules the setting, wherever it stands: a variable goes before pip's files."""
    if setting == "require-virtualenv":
        return (_venv(snapshot),)
    if setting in ("target", "prefix"):
        return (Fix(f"take {setting} out of pip's configuration", "command", f"{_pip(snapshot)} config debug"),)
    value = ":none:" if setting == "only-binary" else "0"
    return (install.export("PIP_" + setting.upper().replace("-", "_"), value, f"lift {setting} for this shell"),)


def _venv(snapshot: Snapshot) -> Fix:
    return Fix("make a virtual environment", "command", f"{snapshot.host.executable} -m venv .venv")


def _pip(snapshot: Snapshot) -> str:
    return f"{snapshot.host.executable} -m pip"


def _on(snapshot: Snapshot, setting: str) -> bool:
    return snapshot.build_tools.pip_config.get(setting, "").strip().lower() not in _OFF


def _traps(snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    inside = snapshot.host.virtual_environment
    if inside and _on(snapshot, "user"):
        yield "user", "inside a virtual environment every install fails"
    if not inside and not snapshot.host.conda and _on(snapshot, "require-virtualenv"):
        yield "require-virtualenv", "this interpreter is not in a virtual environment, so every install fails"
    for setting in ("target", "prefix"):
        if _on(snapshot, setting):
            yield setting, "packages go to another place than the one examined"
    if _on(snapshot, "no-index"):
        yield "no-index", "only what find-links names can be installed"
    only = snapshot.build_tools.pip_config.get("only-binary", "").replace(" ", ",").split(",")
    if {":all:", "flash-attn", "flash_attn"} & set(only):
        yield "only-binary", "flash-attn cannot be built, and PyPI has its sources only"


RULE = Rule("ATN128", "note", check)
