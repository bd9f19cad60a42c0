"""Finds the script that a command passes to another shell: `bash -c '…'`, `ssh HOST '…'`, tmux, sbatch, a heredoc.

tmux: cmd-new-session.c 01831da, cmd-send-keys.c 08e6360 and tmux(1): the words of a command are joined by spaces. A key
with a name ("Enter", "C-m") is pressed; other keys are typed. ssh(1) joins its words by spaces for the host's shell,
which has none of the local variables; sbatch(1) exports all of them.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from attncheck.lint.shell.scope import Field, join_fields
from attncheck.lint.shell.text import Segment, Segments, join_text

SHELLS = {"bash", "sh", "zsh", "dash", "ksh"}
CONTAINERS = {"docker", "podman", "nerdctl", "nvidia-docker", "docker-compose"}
PREFIXES = {"nohup", "sudo", "timeout", "time", "exec", "env", "setsid", "command"}
RUNNERS = {*CONTAINERS, *PREFIXES, "srun", "apptainer", "singularity", "kubectl"}  # these pass on their standard input
SSH_VALUE_OPTIONS = "BbcDEeFIiJLlmOopPQRSWw"
PDSH_VALUE_OPTIONS = "wxgGtufloRjP"
TMUX_VALUE_OPTIONS = {
    **dict.fromkeys(("new-session", "new"), "cefFnstxy"),
    **dict.fromkeys(("new-window", "neww"), "ceFnt"),
    **dict.fromkeys(("split-window", "splitw"), "ceFlpt"),
    **dict.fromkeys(("respawn-pane", "respawnp", "respawn-window", "respawnw"), "cet"),
    **dict.fromkeys(("send-keys", "send"), "Nt"),
}
TMUX_GLOBAL_OPTIONS = "cfLST"
SBATCH_WRAP = re.compile(r"--wrap(?:=|$)")
KEY = re.compile(r"(?:[CMS]-)+\S+|Enter|KPEnter|Escape|Space|Tab|BTab|BSpace|Up|Down|Left|Right|Home|End")
SHELL_ALONE = re.compile(r"\s*(?:\S*/)?(?:bash|sh|zsh|dash|ksh)(?:\s+-[a-bd-z]+|\s+--?)*\s*")
JOB_OF_COMMAND = "ray.sub"  # NeMo-RL v0.7.0 ray.sub:101, 204-206, 662
ENTER_KEYS = {"Enter", "KPEnter", "C-m", "C-M"}
NEWLINE, BLANK = Segment("\n", -1), Segment(" ", -1)


class CarriedScript(NamedTuple):
    """A script that a command passes on: its text, the words before its shell, whether it inherits the environment."""

    segments: Segments
    prefix: tuple[Field, ...] = ()
    inherits: bool = True
    slurm_options: tuple[Field, ...] = ()  # options of the sbatch command that starts it


def find_carried_script(argv: Sequence[Field], stdin: Segments | None, command: Segments = ()) -> CarriedScript | None:
    """Return the script that a command passes to another shell; None if it passes none.

    `command` is the value of the variable COMMAND, which NeMo-RL's ray.sub runs on the first node.
    """
    offset = _find_program(argv)
    name = _program_name(argv[offset])
    arguments = argv[offset + 1 :]
    if name == "ssh":
        return _find_remote_script(arguments, SSH_VALUE_OPTIONS, 1, stdin)
    if name == "pdsh":
        return _find_remote_script(arguments, PDSH_VALUE_OPTIONS, 0, stdin)
    if name == "tmux":
        return _find_tmux_script(arguments)
    if name == "sbatch" and command and any(_program_name(field) == JOB_OF_COMMAND for field in arguments):
        return CarriedScript(command, slurm_options=tuple(arguments))
    if name == "sbatch":
        return _find_sbatch_script(arguments, stdin)
    return _find_shell_string(argv, stdin)


def _program_name(field: Field) -> str:
    return field.text.rsplit("/", 1)[-1]


def _find_program(argv: Sequence[Field]) -> int:
    """Return the index of the program after `nohup`, `sudo -E` and similar prefixes; 0 without a prefix."""
    if _program_name(argv[0]) not in PREFIXES:
        return 0
    carriers = ("ssh", "pdsh", "tmux", "sbatch")
    return next((index for index, field in enumerate(argv) if _program_name(field) in carriers), 0)


def _find_shell_string(argv: Sequence[Field], stdin: Segments | None) -> CarriedScript | None:
    """Return the string of `bash -c`, or the standard input of a shell without operands."""
    for index, field in enumerate(argv):
        if _program_name(field) not in SHELLS:
            continue
        prefix = tuple(argv[:index])
        inherits = not any(_program_name(word) in CONTAINERS for word in prefix)
        option_index = index + 1
        while option_index < len(argv) and re.fullmatch(r"[-+][A-Za-z]+|--[\w-]*", text := argv[option_index].text):
            if "c" in text and not text.startswith("--") and option_index + 1 < len(argv):
                return CarriedScript(argv[option_index + 1].segments, prefix, inherits)
            option_index += 2 if text[-1] == "o" else 1  # `-eo pipefail`
        reads_stdin = option_index >= len(argv) or argv[option_index - 1].text == "-s"
        if stdin is not None and reads_stdin and (not prefix or _program_name(prefix[0]) in RUNNERS):
            return CarriedScript(stdin, prefix, inherits)
    return None


def _find_remote_script(
    arguments: Sequence[Field], value_options: str, host_count: int, stdin: Segments | None
) -> CarriedScript | None:
    command = _skip_options(arguments, value_options)[host_count:]
    if command:
        segments = join_fields(command)
        reads_stdin = stdin is not None and SHELL_ALONE.fullmatch(join_text(segments))
        return CarriedScript(stdin if stdin is not None and reads_stdin else segments, inherits=False)
    return CarriedScript(stdin, inherits=False) if stdin is not None and arguments else None


def _skip_options(arguments: Sequence[Field], value_options: str) -> Sequence[Field]:
    """Return the words after short options; those in `value_options` take a value."""
    index = 0
    while index < len(arguments) and arguments[index].text.startswith("-") and len(arguments[index].text) > 1:
        text = arguments[index].text
        index += 1
        if text == "--":
            break
        letters = text[1:] if not text.startswith("--") else ""
        position = next((place for place, letter in enumerate(letters) if letter in value_options), None)
        index += position is not None and position == len(letters) - 1
    return arguments[index:]


def _find_tmux_script(arguments: Sequence[Field]) -> CarriedScript | None:
    rest = _skip_options(arguments, TMUX_GLOBAL_OPTIONS)
    if not rest or rest[0].text not in TMUX_VALUE_OPTIONS:
        return None
    command = _skip_options(rest[1:], TMUX_VALUE_OPTIONS[rest[0].text])
    if not command:
        return None
    segments = _type_keys(command) if rest[0].text.startswith("send") else join_fields(_until_separator(command))
    return CarriedScript(segments, inherits=False) if segments else None


def _until_separator(command: Sequence[Field]) -> Sequence[Field]:
    """Return the words before tmux's own `;`, which starts its next command."""
    end = next((index for index, field in enumerate(command) if field.text == ";"), len(command))
    return command[:end]


def _type_keys(keys: Sequence[Field]) -> Segments:
    """Return the text that the keys of `send-keys` type; empty if no key ends the line."""
    typed: list[Segment] = []
    for key in keys:
        if key.text in ENTER_KEYS:
            typed.append(NEWLINE)
        elif key.text == "Space":
            typed.append(BLANK)
        elif not KEY.fullmatch(key.text):
            typed += key.segments
    return tuple(typed) if any("\n" in segment.text for segment in typed) else ()


def _find_sbatch_script(arguments: Sequence[Field], stdin: Segments | None) -> CarriedScript | None:
    """Return the command of `--wrap`, or the script that sbatch reads from its standard input."""
    for index, field in enumerate(arguments):
        if not SBATCH_WRAP.match(field.text):
            continue
        options = (*arguments[:index], *arguments[index + 1 :])
        if field.text == "--wrap":
            value = arguments[index + 1 : index + 2]
            return CarriedScript(value[0].segments, slurm_options=options) if value else None
        return CarriedScript(_cut_segments(field.segments, len("--wrap=")), slurm_options=options)
    if stdin is not None and all(field.text.startswith("-") for field in arguments):
        return CarriedScript(stdin, slurm_options=tuple(arguments))
    return None


def _cut_segments(segments: Segments, length: int) -> Segments:
    """Return segments without their first `length` characters."""
    kept: list[Segment] = []
    for segment in segments:
        cut = min(length, len(segment.text))
        length -= cut
        if cut < len(segment.text):
            kept.append(segment.substring(cut, len(segment.text)) if cut else segment)
    return tuple(kept)
