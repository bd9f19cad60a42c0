"""The shell parser: the words of each command, their spans, and the same words as bash itself gives."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from attncheck.core.launch import NOWHERE, Source
from attncheck.lint.shell.commands import Command, parse_commands

OPENRLHF = """set -x

read -r -d '' training_commands <<EOF
openrlhf.cli.train_sft \\
   --data.max_len $LEN \\
   --data.dataset Open-Orca/OpenOrca \\
   --ds.packing_samples
EOF
    # --wandb [WANDB_TOKENS]

if [[ ${1} != "slurm" ]]; then
    deepspeed --module $training_commands
fi
"""


def parse(text: str) -> list[Command]:
    return parse_commands(Source("run.sh", text, "shell"))


def argv_texts(text: str) -> list[list[str]]:
    return [[word.text for word in command.words] for command in parse(text)]


def parse_last(text: str) -> Command:
    return parse(text)[-1]


def source_texts(text: str) -> list[str]:
    """Return the source text of each word of the last command, "" for a word that has no span."""
    return ["" if word.span == NOWHERE else text[slice(*word.span)] for word in parse_last(text).words]


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("a 'b c' \"d $X e\" f\\ g", ["a", "b c", "d $X e", "f g"]),
        ("a $'b\\tc' \"\\$x\" '' \"\"", ["a", "b\tc", "$x", "", ""]),
        ("a b \\\n  c # d e\n", ["a", "b", "c"]),
        ("a#b c", ["a#b", "c"]),
        ("X=1; a $X ${X}2 \"$X\"", ["a", "1", "12", "1"]),
        ("X='1 2'; a $X \"$X\"", ["a", "1", "2", "1 2"]),
        ("X=1; X+=2; a $X", ["a", "12"]),
        ("A=(1 '2 3' # four\n5); a ${A[@]} ${A[1]} \"${A[@]}\"", ["a", "1", "2", "3", "5", "2", "3", "1", "2 3", "5"]),
        ("A=(1); A+=(2); B=(\"${A[@]}\" 3); a \"${B[@]}\"", ["a", "1", "2", "3"]),
        ("A=(); a \"${A[@]}\" b", ["a", "b"]),
        ('declare -A D; D["x"]=1; K=x; D[y]="2 3"; a ${D[$K]} "${D["y"]}"', ["a", "1", "2 3"]),
        ("declare -A D=([x]=1 ['y']=$N); declare -A D; a ${D[x]} ${D[y]} ${D[z]}", ["a", "1", "$N"]),
        ('declare -A D=([x]=1); . ./unread.sh; a ${D[x]} "${D[z]}"', ["a", "1", "${D[z]}"]),
        ('declare -A D=([x]=1); a "${D[z]}"', ["a", ""]),
        ("declare -A D=([x]=1); D+=([y]=2); D=([y]=3); a ${D[x]} ${D[y]} ${D[@]}", ["a", "3", "${D[@]}"]),
        ("declare -A D=([x]=1); if [ -f y ]; then D[x]=2; fi; a ${D[x]}", ["a", "${D[x]}"]),
        ("declare -A D=([x]=1); D[$1]=2; a ${D[x]}", ["a", "${D[x]}"]),
        ("D[x]=1; a ${D[x]}", ["a", "${D[x]}"]),
        ("a ${X:-d} ${Y:=e} $Y ${Z:+f} ${X-g}", ["a", "d", "e", "e", "g"]),
        ("X=1; a ${X:-d} ${X:+f}", ["a", "1", "f"]),
        ("a $((1 + 2 * 3)) $((7 / 2)) $(((2 + 2) * 2))", ["a", "7", "3", "8"]),
        ("N=2 M=3; a $((N * $M)) $((N * Q))", ["a", "6", "$((N * Q))"]),
        ("a $(nproc) `nproc` $HOME $1", ["a", "$(nproc)", "`nproc`", "$HOME", "$1"]),
        ("a $@ \"$@\" b $*", ["a", "$@", "$@", "b", "$*"]),
        ("a > out.log 2>&1 < in", ["a"]),
        ("a &>> out b", ["a", "b"]),
        ("X=$(cat <<EOF\n1 2\nEOF\n); a $X", ["a", "1", "2"]),
        ("X=$(echo 1 2); a $X", ["a", "1", "2"]),
        ("a $(cat <<E | tr 1 2\n1\nE\n)", ["a", "$(cat <<E | tr 1 2\n1\nE\n)"]),
        ("a $(echo 1 | wc -l)", ["a", "$(echo 1 | wc -l)"]),
        ("N=8; a $(expr 16 / $N) $(expr 64 / $N / 2) $(expr $Q + 1)", ["a", "2", "4", "$(expr $Q + 1)"]),
        ("read -r -d '' X <<'EOF'\n$Y 1\nEOF\na $X", ["a", "$Y", "1"]),
        ("X=1; J=$(srun a $X)", ["srun", "a", "1"]),
        ('C="a b"; O=$(kubectl exec p -- bash -c "$C" 2>&1)', ["kubectl", "exec", "p", "--", "a", "b"]),
        ("a; J=$(hostname)", ["a"]),
        ("eval 'a b'", ["a", "b"]),
        ("bash -c 'cd x && a b'", ["a", "b"]),
        ("srun -N 2 bash -lc \"a $((1+1)) \\\"b c\\\"\"", ["srun", "-N", "2", "a", "2", "b c"]),
        ("f() { local n=$1; shift; a $n \"$@\"; }; f 8 b c", ["a", "8", "b", "c"]),
        ("if [ 1 -eq 2 ]; then X=1; elif [[ a == a ]]; then X=2; else X=3; fi; a $X", ["a", "2"]),
        ("[ a = b ] && X=1 || X=2; a $X", ["a", "2"]),
        ('while (( $# )); do case "$1" in -g) G="$2";; esac; done; G=${G:-0,1}; a $G', ["a", "0,1"]),
        ('G=""; case "$1" in -g) G="$2";; esac; a ${G:-8} ${G:+set}', ["a", "8", "set"]),
        ('case "$1" in -g) G=4;; esac; a ${G:-8}', ["a", "4"]),
        ('D="${D:-}"; if [[ -z "$D" || -z "$E" ]]; then echo no; exit 1; fi; a "$D"', ["a", "${D}"]),
        ('D="${D:-}"; if [ -z "$D" ]; then echo none; fi; a "$D"', ["a", ""]),
        ('D="${D:-}"; if [ -n "$D" ]; then b; elif [ -z "$D" ]; then exit 0; fi; a "$D"', ["a", ""]),
        ("X=1; if [ -f y ]; then X=2; fi; a $X", ["a", "${X}"]),
        ("for i in 1 2; do a $i; done", ["a", "$i"]),
        ("(cd x; a b)", ["a", "b"]),
        ("cat <<EOF >y\na b\nEOF\na c", ["a", "c"]),
        ("case $1 in x|y) a 1;; *) a 2;; esac", ["a", "2"]),
        ("a *.txt {1..3} ~/x", ["a", "*.txt", "{1..3}", "~/x"]),
        ("#SBATCH --nodes=2\na $SLURM_NNODES", ["a", "2"]),
        ("#SBATCH --gres=gpu:4\na ${SLURM_GPUS_ON_NODE:-2}", ["a", "4"]),
        ("#SBATCH --gres=gpu:a100:4\na ${SLURM_GPUS_ON_NODE:-2}", ["a", "4"]),
        ("#SBATCH --gpus-per-node=h100:8\na ${SLURM_GPUS_ON_NODE:-2}", ["a", "8"]),
        ("#SBATCH --gres=shard:4\na ${SLURM_GPUS_ON_NODE:-2}", ["a", "${SLURM_GPUS_ON_NODE:-2}"]),
        ("a 'b", ["a", "b"]),
        ("a \"b $(c", ["a", "b $(c"]),
    ],
)  # fmt: skip
def test_words(script: str, expected: list[str]) -> None:
    assert argv_texts(script)[-1] == expected


def test_branches_that_are_not_taken_are_not_read() -> None:
    assert argv_texts("if [ a = b ]; then x; else y; fi") == [["y"]]
    assert argv_texts("if [ a = b ] && [ $1 = c ]; then x; fi") == []
    assert argv_texts("if [ $1 = b ]; then x; else y; fi") == [["x"], ["y"]]
    assert argv_texts("if ! true; then x; fi; if [ a = a ] && ! [ b = c ]; then y; fi") == [["y"]]


def test_a_launcher_that_differs_between_branches_is_followed_in_each() -> None:
    launchers = "if [ $1 = b ]; then L='torchrun -m'; else L='python -m'; fi; "
    assert argv_texts(f"{launchers}$L train --lr 1") == [
        ["torchrun", "-m", "train", "--lr", "1"],
        ["python", "-m", "train", "--lr", "1"],
    ]
    assert argv_texts("L=python; if [ -f uv.lock ]; then L='uv run python'; fi; ${L} x") == [["python", "x"]]
    assert argv_texts("S=/opt/x; if [ $1 ]; then S=$(command -v x); fi; $S t") == [["/opt/x", "t"]], "one is known"
    assert argv_texts("N=1; if [ $1 = b ]; then N=2; fi; x $N") == [["x", "${N}"]], "an argument alone is not"


def test_what_only_running_tells_is_not_known() -> None:
    command = parse_last("X=$(nproc); a $X b$HOME c '$HOME' \"$((1 + $X))\"")
    assert [word.known for word in command.words] == [True, False, False, True, True, False]
    assert command.words[1].text == "$(nproc)"


def test_words_know_where_they_came_from() -> None:
    text = 'L=4 A=(--x "$L" --y=\'2 3\')\na "b c" --l $L --m=${L} "${A[@]}" \'x\'"y"\n'
    assert source_texts(text) == ["a", '"b c"', "--l", "$L", "--m=${L}", "--x", '"$L"', "--y='2 3'", "'x'\"y\""]
    assert [str(word.location) for word in parse_last(text).words][4:6] == ["run.sh:2:16", "run.sh:1:8"]


def test_an_unquoted_variable_gives_each_word_its_own_place() -> None:
    text = 'B=1\nA="--x $B --y 2"\na $A z$A\n'
    assert source_texts(text) == ["a", "--x", "$B", "--y", "2", "", "$B", "--y", "2"]


def test_the_heredoc_of_openrlhf_is_edited_where_it_stands() -> None:
    text = "LEN=2048\n" + OPENRLHF
    command = parse_last(text)
    assert [word.text for word in command.words][2:5] == ["openrlhf.cli.train_sft", "--data.max_len", "2048"]
    assert source_texts(text)[2:5] == ["openrlhf.cli.train_sft", "--data.max_len", "$LEN"]
    assert command.notes == ("it depends on a condition: `if` of line 12",)
    assert str(command.location) == "run.sh:13:5"
    assert not parse_last(OPENRLHF).words[4].known


def test_a_script_in_a_string_is_placed_in_the_source() -> None:
    text = 'N=8\nsrun bash -c "cd x; \\\n torchrun --nproc $N \\"t.py\\" --a \'b c\'"'
    assert source_texts(text) == ["srun", "torchrun", "--nproc", "$N", '\\"t.py\\"', "--a", "'b c'"]


def test_the_environment_is_what_is_exported_or_set_in_front() -> None:
    command = parse_last("A=1; export B=2 C=$(x); D=3; export D; declare -x E=5; F=6 a")
    assert command.environ == {"B": "2", "C": "$(x)", "D": "3", "E": "5", "F": "6"}
    assert parse_last("set -a; A=1; a").environ == {"A": "1"}


def test_the_users_own_environment_is_never_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOMETHING", "1")
    assert parse_last("a $SOMETHING").words[1].text == "$SOMETHING"
    assert parse_last("a").environ == {}


def test_defaults_that_are_taken_are_said() -> None:
    assert parse_last("N=${N:-8}; a $N").notes == (
        "defaults are used for variables that the script does not set: N='8'",
    )
    assert parse_last("N=4; a ${N:-8}").notes == ()


@pytest.mark.parametrize(
    ("script", "note"),
    [
        ("source env.sh; a", "line 1: the settings of env.sh are not followed"),
        ("a 'b", "line 1: a quote or a bracket that opens here is never closed"),
        ("x\na <<EOF\nb", "line 2: the heredoc that begins here has no end"),
        ("a A=(b", "line 1: an array that is never closed"),
        ("A=1; if [ -f x ]; then A=2; fi; a", "A is '1' or '2', which is known only at run time"),
        ("A=(b); if [ -f x ]; then A+=(c); fi; a", "A is extended under a condition that is known only at run time"),
        (
            "A=(b); if [ -f x ]; then A=(c); fi; a",
            "A differs between branches, and the branch is known only at run time",
        ),
        ("while read x; do a; done", "it depends on a loop: `while` of line 1"),
        ("b\nif [ $1 ]; then a; fi", "it depends on a condition: `if` of line 2"),
    ],
)
def test_notes(script: str, note: str) -> None:
    assert parse_last(script).notes == (note,)
    assert parse_last("a 'b' ${x}; if [ a ]; then a; fi").notes == ()


def test_functions_are_read_where_they_are_called_or_else_where_they_are_defined() -> None:
    assert argv_texts("f() { a $1; }\nf 1\nf 2") == [["a", "1"], ["a", "2"]]
    assert argv_texts("function f {\n a $1\n}\nb") == [["a", "$1"], ["b"]]
    assert argv_texts("X=1\nf() { X=2; }\na $X\nf\na $X") == [["a", "1"], ["a", "2"]]


@pytest.mark.parametrize(
    ("body", "after"),
    [
        ("local M=$1; a $M", ["0"]),
        ("M=$1; a $M", ["${M}"]),
        ("M=$1; N=$M; a $N", ["${M}"]),
        ("declare -r M=$1\n a $M", ["0"]),
        ("M=$1; f() { a $M; }; f", ["${M}"]),
        ('local M="$M"; M=$1; a $M', ["0"]),
    ],
)
def test_each_call_of_a_function_has_its_own_values(body: str, after: list[str]) -> None:
    script = f'M=0\nrun() {{\n{body}\n}}\ncase "$1" in x) run 1;; both) run 1; run 2;; *) run 3;; esac\nb $M'
    assert argv_texts(script) == [["a", "1"], ["a", "1"], ["a", "2"], ["a", "3"], ["b", *after]]


@pytest.mark.parametrize(
    ("printed", "words"),
    [
        ("printf '%q ' \"${A[@]}\"", ["1", "2 3", "4"]),
        ("printf '%s ' \"${A[@]}\"", ["1", "2", "3", "4"]),
        ("printf '%q\\n' \"${A[@]}\"", ["$(printf '%q\\n' \"${A[@]}\")"]),
    ],
)
def test_an_array_that_is_printed_for_another_shell_is_read(printed: str, words: list[str]) -> None:
    assert argv_texts(f'A=(1 "2 3" 4)\nC="$({printed})"\nbash -c "a $C"')[-1][1:] == words


def test_a_condition_in_a_function_leaves_both_values_open() -> None:
    both = "M=0\nrun() {\nif [ $X = 1 ]; then M=$1; fi\na $M\n}\n"
    assert argv_texts(f"{both}run 1\nb $M") == [["a", "${M}"], ["b", "${M}"]]
    assert argv_texts("run() { local M=$1; }\nrun 1\nM=2; run 3; a $M") == [["a", "2"]]
    assert argv_texts("M=1; run() { M=$1; }\n[ $X = 1 ] && run 3\na $M") == [["a", "${M}"]]
    assert argv_texts("M=1; run() { A=($1 4); }\nA=(0); [ $X = 1 ] && run 3\na ${A[@]}") == [["a", "${A[@]}"]]


@pytest.mark.parametrize(
    ("default", "value", "words"),
    [
        ("d", '"$2"', ["a", "d"]),
        ("d", "${1#*=}", ["a", "d"]),
        ("", '"$2"', ["a", "${M}"]),  # the script needs the argument
        ("d", "e", ["a", "${M}"]),
        ("d", "$2/e", ["a", "${M}"]),
        ("$D", '"$2"', ["a", "${M}"]),
    ],
)
def test_a_value_that_an_argument_of_the_script_replaces_is_the_default(
    default: str, value: str, words: list[str]
) -> None:
    script = f'M={default}\nwhile [ $# -gt 0 ]; do case $1 in --m*) M={value}; shift 2;; esac; done\na "$M"'
    assert argv_texts(script)[-1] == words


def test_a_case_that_depends_on_an_argument_is_followed_in_each_branch() -> None:
    script = "case {} in sft) S=sft.py; A=1;; dpo) S=dpo.py; A=2;; *) exit 1;; esac\ntorchrun $S --lr $A"
    both = [["torchrun", "sft.py", "--lr", "${A}"], ["torchrun", "dpo.py", "--lr", "${A}"]]
    started = [argv for argv in argv_texts(script.format('"$1"')) if argv[0] == "torchrun"]
    assert started == both, "which value the other variables have is not known"
    assert argv_texts(script.format('"${1:-dpo}"')) == [["torchrun", "dpo.py", "--lr", "2"]]
    loop = "set -- -a 1; while [ $# -gt 0 ]; do case $1 in -a) X=1;; -b) Y=2;; esac; shift; done; a $X $Y"
    assert argv_texts(loop)[-1] == ["a", "1", "2"], "a case in a loop is not decided by its first round"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("shift", ["a", "b"]),
        ('while [[ "$1" != -- ]]; do shift; done; shift', ["a", "${@}"]),
        ('[[ "$X" == 1 ]] && shift', ["a", "${@}"]),
    ],
)
def test_arguments_that_a_loop_or_a_condition_shifts_are_not_known(body: str, words: list[str]) -> None:
    (argv,) = [argv for argv in argv_texts(f'f() {{ {body}; a "$@"; }}; f x b') if argv[0] == "a"]
    assert [word.replace("$@", "${@}") for word in argv] == words


AGAINST_BASH = [
    "show a 'b c' \"d\\\"e\" f\\ g $'h\\ti' x\"y\"'z'",
    'X=\'a  b\'; show $X "$X" x$X"y"',
    'A=(1 \'2 3\' "4"); A+=(5 # no\n 6); show "${A[@]}" ${A[@]} ${A[0]} "${A[*]}" $A x"${A[@]}"y',
    "N=4; show $((N*2)) $((N/3)) $((-N%3)) $((N-(1+1)))",
    'X=; show ${X:-d} ${X-e} ${X:+f} ${Y:=g} $Y "$X" $X',
    "read -r -d '' X <<EOF\na \\\n  b 'c d' \\$e\nEOF\nshow $X",
    "read -d '' X <<'EOF'\na \\\n  b\nEOF\nshow $X",
    "X=$(cat <<EOF\na don't (b\nEOF\n)\nshow $X",
    "cat <<-A >/dev/null; show x\n\ty\n\tA\nshow z",
    'f() { show $# "$@" $2; shift; show "$@"; }; f 1 \'2 3\' 4'.replace("$# ", ""),
    "if [ 2 -gt 1 ] && [[ a != b ]]; then show 1; else show 2; fi",
    "[[ a == b ]] || show 1; [ -z '' ] && show 2 || show 3; ! [ a = b ] && show 4",
    "for i in 1; do X=1; done; show $X",
    "show a; (show b); { show c; } && show d | cat >&2",
    "case x in a) show a;; x|y) show x;; esac; show z",
    'X=dpo; case "$X" in sft|SFT) A=1;; d?o) A=2;; *) A=3;; esac; show $A',
    "case ${1:-grpo} in \"grpo\") show 1 ;; 'ppo') show 2 ;; *) show 3; esac",
    "case a.b in *.c) show 1;;\n  # no\n  (*.[a-b]) show 2;; *) show 3;; esac",
    "case a in a) show 1;& b) show 2;; c) show 3;; esac",
    "case a in b) show 1;; esac; case a in esac; show 2",
    "eval \"show 'a b'\"; eval show '\"c d\"'",
    'show "a\nb" c\\\nd',
    'X=a; X+=b; export Y="$X c"; show $Y "${Y}"',
    'show ${X:-"a b"} "${X:-c d}" ${X:-c d}',
    "show a>/dev/null b 2>&1 c; show d</dev/null",
]


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash to compare with")
@pytest.mark.parametrize("script", AGAINST_BASH)
def test_bash_gives_the_same_words(script: str, tmp_path: Path) -> None:
    show = 'show() { printf "%s\\0" "@@" "$@" >> log; }\n'
    subprocess.run(["bash", "-c", show + script], cwd=tmp_path, stdin=subprocess.DEVNULL, timeout=20, check=False)
    calls = (tmp_path / "log").read_text().split("@@\0")[1:]
    expected = [argv.split("\0")[:-1] for argv in calls]
    commands = [command for command in parse(script) if command.words[0].text == "show"]
    actual = [[word.text for word in command.words[1:]] for command in commands]
    # A branch that `;&` falls into is undecided: every command that bash ran is among ours, in its order.
    assert [argv for argv in actual if argv in expected] == expected
    assert ";&" in script or actual == expected
