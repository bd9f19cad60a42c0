"""Shells complete values, in the protocols of bash, zsh and fish, and options are explained in whole sentences."""

from __future__ import annotations

import os
import shlex
from typing import Any

import pytest
import typer

from attncheck.cli.app import app, load_command
from attncheck.cli.options import option
from tests.conftest import Run

# What a user has typed, and values that must be among the answers; every one of them begins as the last word does.
TYPED = [
    ("doctor --select ATN14", {"ATN140", "ATN142"}),
    ("doctor --select atn14", {"atn140"}),
    ("doctor --ignore ATN101,ATN14", {"ATN101,ATN140"}),
    ("explain ATN20", {"ATN201"}),
    ("explain driver", {"driver-too-old"}),
    ("doctor --format j", {"json", "junit"}),
    ("doctor --output sa", {"sarif="}),
    ("rules --format j", {"json"}),
    ("doctor --target h10", {"h100", "h100x8"}),
    ("lint --target h100x8,to", {"h100x8,torch="}),
    ("doctor --profile r", {"ring", "rl"}),
    ("doctor --lane i", {"import"}),
    ("doctor --fail-on w", {"warning"}),
    ("parity --backend sdpa", {"sdpa_math", "sdpa_flash"}),
    ("parity --suite q", {"quick"}),
    ("parity --dtype b", {"bf16"}),
    ("gate --suite f", {"full"}),
    ("gate --checks p", {"parity"}),
    ("run --checks d", {"doctor", "determinism"}),
    ("bench --passes f", {"forward", "forward+backward"}),
    ("smoke --packing mask", {"mask_2d", "mask_4d"}),
    ("smoke --only pad", {"padding"}),
    ("lint --framework ax", {"axolotl"}),
    ("selftest --inject ATN10", {"ATN102"}),
]


def complete(attncheck: Run, shell: str, line: str) -> list[str]:
    """Return the values that a shell is given for what was typed."""
    environ = dict(os.environ)
    words = line.split()
    if shell == "bash":
        environ |= {"_ATTNCHECK_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
        return attncheck(env=environ).stdout.split()
    environ |= {"_ATTNCHECK_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_ARGS": line}
    if shell == "fish":
        environ["_TYPER_COMPLETE_FISH_ACTION"] = "get-args"
        return [answer.partition("\t")[0] for answer in attncheck(env=environ).stdout.splitlines()]
    answer = attncheck(env=environ).stdout  # _arguments '*: :(("ATN140":"its name"\n"ATN142":"its name"))'
    inside = answer.partition("((")[2].rpartition("))")[0] or answer.partition("*: :(")[2].rpartition(")")[0]
    return [word.partition(":")[0] for word in shlex.split(inside)]


@pytest.mark.parametrize(("line", "values"), TYPED, ids=[line for line, _ in TYPED])
def test_bash_completes_values(attncheck: Run, line: str, values: set[str]) -> None:
    answers = complete(attncheck, "bash", f"attncheck {line}")
    assert values <= set(answers)
    assert all(answer.lower().startswith(line.split()[-1].lower()) for answer in answers)


@pytest.mark.parametrize("shell", ["zsh", "fish"])
@pytest.mark.parametrize(("line", "values"), [TYPED[0], TYPED[5], TYPED[8]], ids=["codes", "formats", "targets"])
def test_other_shells_complete_values(attncheck: Run, shell: str, line: str, values: set[str]) -> None:
    assert values <= set(complete(attncheck, shell, f"attncheck {line}"))


@pytest.mark.parametrize("line", ["doctor --select ATN14", "parity --backend sdpa", "doctor --target h1"])
def test_completing_imports_nothing_heavy(attncheck: Run, line: str) -> None:
    environ = {
        **os.environ,
        "_ATTNCHECK_COMPLETE": "complete_bash",
        "COMP_WORDS": f"attncheck {line}",
        "COMP_CWORD": "3",
        "PYTHONPROFILEIMPORTTIME": "1",
    }
    names = {entry.rpartition("|")[2].strip() for entry in attncheck(env=environ).stderr.splitlines()}
    assert "attncheck.cli.completion" in names
    assert not names & {"torch", "numpy", "transformers", "ruamel.yaml", "attncheck.lint.run", "attncheck.gate.run"}


def list_parameters() -> list[tuple[str, Any]]:
    """Return every parameter of every command, with its command's name."""
    group: Any = typer.main.get_command(app)
    context = group.make_context("attncheck", [])
    names = group.list_commands(context)
    return [(name, param) for name in names for param in group.get_command(context, name).params]


CHOOSING = {"--select", "--ignore", "--format", "--output", "--target", "--profile", "--lane", "--backend", "--suite"}
CHOOSING |= {"--dtype", "--device", "--fail-on", "--checks", "--passes", "--framework", "--only", "--inject", "--sweep"}
CHOOSING |= {"--packing", "--positions", "--padding-side", "--precision", "--cross-entropy", "--scheme", "code"}
PARAMETERS = [
    pytest.param(param, id=f"{name} {param.opts[0]}") for name, param in list_parameters() if param.name != "help"
]


@pytest.mark.parametrize("param", PARAMETERS)
def test_what_is_one_of_some_words_is_completed(param: Any) -> None:
    if CHOOSING & {*param.opts}:
        assert param._custom_shell_complete is not None


def find_fault(param: Any) -> str:
    """Return what is wrong with the help of an option, "" if it is whole sentences with its default and unit."""
    text = param.help or ""
    sentence = text.partition(". ")[0]
    if not text[:1].isupper() or not text.endswith(".") or len(sentence.split()) < 3 or sentence.endswith("Default:"):
        return "no sentence that says what it does"
    is_flag = getattr(param, "is_flag", False)
    takes_value = param.param_type_name == "option" and not is_flag
    if (takes_value or (is_flag and param.secondary_opts)) and "Default: " not in text:
        return "no default"
    unit = {"SECONDS": "seconds", "TOKENS": "tokens", "SHARE": "share (0 to 1)"}.get(param.metavar or "", "")
    return f"no unit: {unit}" if unit not in text else ""


@pytest.mark.parametrize("param", PARAMETERS)
def test_an_option_is_explained_in_whole_sentences(param: Any) -> None:
    assert find_fault(param) == "", param.help


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({"help": "auto, cpu or cuda. Default: auto."}, "no sentence that says what it does"),
        ({"help": "Rows. Default: 1."}, "no sentence that says what it does"),
        ({"help": "Only this backend; repeat for several"}, "no sentence that says what it does"),
        ({"help": "Lint this script or configuration."}, "no default"),
        ({"help": "Stop after this long. Default: no bound.", "metavar": "SECONDS"}, "no unit: seconds"),
        ({"help": "Stop after this many seconds. Default: no bound.", "metavar": "SECONDS"}, ""),
    ],
)
def test_a_riddle_is_seen(settings: dict[str, str], fault: str) -> None:
    single = typer.Typer()

    @single.command()
    def command(value: str = option("Panel", "--value", **settings)) -> None: ...

    built: Any = typer.main.get_command(single)
    assert find_fault(next(param for param in built.params if param.name == "value")) == fault


def test_every_command_has_its_place_in_the_help() -> None:
    orders = [load_command(name).order for name in {name for name, _ in list_parameters()}]
    assert len(orders) == len(set(orders))
