"""pip's configuration makes an install command do something unexpected.

What it checks: pip's effective settings and the interpreter, if pip would be used: `user` inside a virtual
environment, `target` or `prefix`, `no-index`, `only-binary` for flash-attn, `require-virtualenv` or an externally
managed interpreter outside one.

Why it matters: the commands that attncheck prints would fail, or install into a different environment from the
examined one.

What to do: unset the setting that the finding names, for this command.

Source: pip 23.2.1, `_internal/commands/install.py` and `_internal/cli/req_command.py`; PEP 668.
"""

from collections.abc import Iterator

from attncheck.doctor.fixes import install
from attncheck.doctor.rules import Fix, Problem, Problems, Rule, Snapshot

_FALSE_VALUES = ("", "0", "false", "no", "off")


def check(snapshot: Snapshot) -> Problems:
    if install.install_command(snapshot).startswith("uv "):
        return  # uv reads none of it
    for setting, effect in _harmful_settings(snapshot):
        value = snapshot.build_tools.pip_config.get(setting, "")
        yield Problem(
            message=f"pip is set to {setting}: {effect}",
            subject="pip",
            evidence=(f"pip's configuration: {setting} = {value}",),
            fixes=_overrule_setting(snapshot, setting),
        )
    if install.refuses_installs(snapshot):
        yield Problem(
            message="this interpreter is managed by the operating system: pip refuses to install into it",
            subject="pip",
            evidence=("an EXTERNALLY-MANAGED file is next to its standard library",),
            fixes=(_make_virtual_environment(snapshot),),
        )


def _overrule_setting(snapshot: Snapshot, setting: str) -> tuple[Fix, ...]:
    """Return the fix that overrides the setting in any file: a variable takes precedence over pip's files."""
    if setting == "require-virtualenv":
        return (_make_virtual_environment(snapshot),)
    if setting in ("target", "prefix"):
        return (
            Fix(
                f"remove {setting} from pip's configuration",
                "advice",
                f"{snapshot.host.executable} -m pip config debug",
            ),
        )
    value = ":none:" if setting == "only-binary" else "0"
    return (
        install.export_variable("PIP_" + setting.upper().replace("-", "_"), value, f"disable {setting} for this shell"),
    )


def _make_virtual_environment(snapshot: Snapshot) -> Fix:
    return Fix("create a virtual environment", "command", f"{snapshot.host.executable} -m venv .venv")


def _is_on(snapshot: Snapshot, setting: str) -> bool:
    return snapshot.build_tools.pip_config.get(setting, "").strip().lower() not in _FALSE_VALUES


def _harmful_settings(snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    in_virtual_environment = snapshot.host.virtual_environment
    if in_virtual_environment and _is_on(snapshot, "user"):
        yield "user", "inside a virtual environment every install fails"
    if not in_virtual_environment and not snapshot.host.conda and _is_on(snapshot, "require-virtualenv"):
        yield "require-virtualenv", "this interpreter is not in a virtual environment, so every install fails"
    for setting in ("target", "prefix"):
        if _is_on(snapshot, setting):
            yield setting, "packages are not installed into the examined environment"
    if _is_on(snapshot, "no-index"):
        yield "no-index", "only what find-links names can be installed"
    only_binary = snapshot.build_tools.pip_config.get("only-binary", "").replace(" ", ",").split(",")
    if {":all:", "flash-attn", "flash_attn"} & set(only_binary):
        yield "only-binary", "flash-attn cannot be built, and PyPI has only its sources"


RULE = Rule("ATN128", "note", check)
