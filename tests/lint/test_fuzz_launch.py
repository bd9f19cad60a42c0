"""Damaged commands, scripts and configuration files give launches, or an error of one line, and no other error."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import pytest

from attncheck.core.io.errors import AttncheckError
from attncheck.core.launch import NOWHERE, Kind, Launch, Source
from attncheck.lint import launches
from attncheck.lint.arguments import parse_options, parse_overrides
from attncheck.lint.files.editing import append_argument, apply_edits, remove_setting, replace_value

COMMANDS = [
    "deepspeed --num_gpus 8 --module openrlhf.cli.train_sft --ds.packing_samples --data.max_len 4096 --eval.steps -1",
    "CUDA_VISIBLE_DEVICES=0,1 accelerate launch --num_processes 2 --config_file a.yaml -m trl.scripts.sft --config b",
    'ray job submit --runtime-env-json=\'{"env_vars": {"A": "1"}}\' -- python3 -m verl.trainer +a.b=\'["x"]\' $@',
    'srun -N 2 --ntasks-per-node=1 bash -c "cd /x && torchrun --nproc_per_node $GPUS -m a.b --c \\"d e\\""',
    "env A=b nohup uv run --with x python -u train.py --lr 1e-5 --range 0.2 0.27 --x=y > log 2>&1 &",
    "llamafactory-cli train c.toml cutoff_len=$((1024 * 4)) ${EXTRA:-} \"${ARGS[@]}\" `nproc` $'a\\tb'",
]
SCRIPT = """#!/bin/bash
#SBATCH --nodes=2
set -x
export A=1 B="x $A"
SIZE=${SIZE:-8}
LEN=$(($SIZE * 1024))
ARGS=(
   --a 1  # a comment
   --b "two words" $B
)
ARGS+=(--c "${ARGS[@]}")
read -r -d '' training_commands <<EOF
openrlhf.cli.train_dpo \\
   --data.max_len $LEN \\
   --ds.packing_samples
EOF
launch() { local n=$1; shift; torchrun --nproc_per_node $n "$@"; }
if [[ ${1} != "slurm" ]] && [ $SIZE -gt 4 ]; then
    deepspeed --module $training_commands
elif [ -f x ]; then launch 8 train.py "${ARGS[@]}"
fi
for i in 1 2; do python train.py --seed $i; done
case $1 in a|b) python a.py ;; *) python b.py ;; esac
eval "python c.py --x '$A'"
cat <<'END' > file
text ${x}
END
python3 -m verl.trainer.main_ppo \\
    data.max_len=${LEN} trainer.logger='["console"]' \\
    trainer.epochs=1 $@
"""
YAML = """base: &base
  lr: 1.0e-5
  list: [1, two, {three: 3}]
model:
  <<: *base
  path: "meta/llama"  # a comment
  attn: flash_attention_2
  home: ${oc.env:HOME}
datasets:
  - path: x
    type: y
text: |
  several
  lines
empty:
flow: {a: 1, b: 'c'}
alias: *base
"""
JSON = '{"a": 1, "b": {"c": "x\\n", "d": [1, {"e": null}]}, "f": true, "g": -1.5e-3}'
TOML = """a = 1 # x
[b.c]
d = "x#y"
e = [
 1, # one
 2,
]
"q.r" = true
[[l]]
x = 1
[t]
g.h = 1.5
i = {j = 'k'}
"""
PIECES = [
    *("$(", "${", "`", '"', "'", "<<EOF\n", "EOF", "\\\n", "((", "))", "]]", "{", "}", "[", "]", "\0", "\ud7ff", "𝕏"),
    *(
        "&&",
        "||",
        ";;",
        "$'",
        "<(",
        ">",
        "=(",
        "${a[@]}",
        "*b",
        "&b",
        "<<: ",
        "---\n",
        "\t",
        "\r\n",
        ": ",
        "- ",
        "!!x ",
    ),
]
LIMIT_SECONDS = 10.0  # of processor time: what is quadratic takes minutes, a busy machine under coverage a second


def damage(text: str, chance: random.Random) -> str:
    for _ in range(chance.randint(1, 6)):
        start = chance.randrange(len(text) + 1)
        end = min(len(text), start + chance.choice([1, 1, 3, 20, 200]))
        damage_kind = chance.randrange(7)
        if damage_kind == 0:
            text = text[:start] + text[end:]
        elif damage_kind == 1:
            text = text[:end] + text[start:]
        elif damage_kind == 2:
            text = text[:start] + chance.choice(PIECES) + text[start:]
        elif damage_kind == 3:
            text = (
                text[:start] + chr(ord(text[start]) ^ (1 << chance.randrange(7))) + text[start + 1 :]
                if start < len(text)
                else text
            )
        elif damage_kind == 4:
            text = text[:start]
        elif damage_kind == 5:
            text = text.replace(chance.choice("\"'()\n\\$ "), "", chance.randint(1, 3))
        else:
            piece = chance.choice(PIECES)
            text = text[:start] + piece * chance.randint(1, 30) + text[start:]
    return text


def parse_launches(source: Source) -> list[Launch]:
    try:
        return launches.find_launches(
            source, lambda path: Source(path, YAML, "yaml") if path.endswith("yaml") else None
        )
    except AttncheckError as error:
        if len(str(error).splitlines()) != 1:
            raise AssertionError(f"not one line: {error}") from error
        return []


def make_edits(launch: Launch) -> None:
    """Make every edit that the settings of a launch allow."""
    source = launch.source
    settings = [
        *parse_options(launch.words[1:], lambda _: "optional", source),
        *parse_overrides(launch.words[1:], source),
    ]
    for setting in [*settings, *(launch.entries if launch.file is source else ())][:5]:
        if setting.span != NOWHERE:
            apply_edits(source, [remove_setting(source, setting.span)])
        if NOWHERE not in (setting.span, setting.value_span):
            apply_edits(source, [replace_value(setting, "a b")])
    if not launch.words or any(word.span != NOWHERE for word in launch.words):
        apply_edits(source, [append_argument(launch, "--more 1")])


def list_originals() -> list[tuple[str, Kind]]:
    commands: list[tuple[str, Kind]] = [(text, "command") for text in COMMANDS]
    return [
        *commands,
        (SCRIPT, "shell"),
        (SCRIPT, "shell"),
        (SCRIPT, "shell"),
        (YAML, "yaml"),
        (JSON, "json"),
        (TOML, "toml"),
    ]


@pytest.mark.parametrize("seed", [pytest.param(seed, marks=[pytest.mark.nightly] * (seed > 2)) for seed in range(10)])
def test_damaged_text_gives_launches_or_one_line(seed: int) -> None:
    chance = random.Random(seed)
    sources = list_originals()
    slowest = 0.0
    for _ in range(500):
        text, kind = chance.choice(sources)
        source = Source("damaged", damage(text, chance), kind)
        start = time.process_time()
        launches_found = parse_launches(source)
        slowest = max(slowest, time.process_time() - start)
        for launch in launches_found[:2]:
            make_edits(launch)
    assert slowest < LIMIT_SECONDS, f"one text took {slowest:.2f} s"


def test_what_is_whole_is_read() -> None:
    counts = [len(parse_launches(Source("whole", text, kind))) for text, kind in list_originals()]
    assert counts == [1] * 6 + [7] * 3 + [1] * 3


def make_aliases(form: str) -> str:
    return "a0: &a0 {x: 1}\n" + "".join(f"a{i}: &a{i} {form.format(f'*a{i - 1}')}\n" for i in range(1, 20))


HUGE: dict[str, tuple[Callable[[], str], Kind]] = {
    "substitutions": (lambda: "$(" * 50_000, "shell"),
    "quoted substitutions": (lambda: 'x "$(' * 20_000, "shell"),
    "parameters": (lambda: "x ${a:-" * 14_000, "shell"),
    "nested parameters": (lambda: "x " + "${a:-" * 20_000 + "}" * 20_000, "shell"),
    "parentheses": (lambda: "(" * 100_000, "shell"),
    "arithmetic": (lambda: "x $((" * 20_000, "shell"),
    "one sum": (lambda: "x $((" + "1+" * 40_000 + "1))", "shell"),
    "doubling": (lambda: "a=x\n" + "a=$a$a\n" * 1_000 + "python $a", "shell"),
    "doubling words": (lambda: "a='x y'\n" + 'a="$a $a"\n' * 1_000 + "python $a", "shell"),
    "doubling arrays": (lambda: "a=(x y)\n" + 'a+=("${a[@]}")\n' * 1_000 + 'python "${a[@]}"', "shell"),
    "appending": (lambda: "a=(x)\n" + 'a=("${a[@]}" y)\n' * 5_000 + 'python "${a[@]}"', "shell"),
    "recursion": (lambda: "f() { f; f; f; f; f; f; python x.py; }\nf\n", "shell"),
    "evaluations": (lambda: "a='eval \"$a\"; eval \"$a\"'\n" + 'eval "$a"', "shell"),
    "heredocs": (lambda: "cat <<A\n" * 12_000, "shell"),
    "heredocs on a line": (lambda: "cat" + " <<A" * 20_000, "shell"),
    "heredocs in a substitution": (lambda: "x=$(" + "cat <<A x\n" * 10_000, "shell"),
    "backticks": (lambda: "`" * 100_001, "shell"),
    "quotes": (lambda: "'\"" * 50_000, "shell"),
    "functions": (lambda: "f() { " * 15_000, "shell"),
    "conditions": (lambda: "if [ 1 ]; then " * 7_000, "shell"),
    "cases": (lambda: "case x in " * 10_000, "shell"),
    "tests": (lambda: "[[ a " * 20_000, "shell"),
    "arrays": (lambda: "a=(" * 30_000, "shell"),
    "words": (lambda: "python " + "--a b " * 16_000, "shell"),
    "commands": (lambda: "python a.py\n" * 9_000, "shell"),
    "braces": (lambda: "{ " * 50_000, "shell"),
    "blanks": (lambda: " " * 100_000 + "\\\n" * 50_000, "shell"),
    "directives": (lambda: "#SBATCH --nodes=" * 6_000, "shell"),
    "flow": (lambda: "a: " + "[" * 50_000, "yaml"),
    "flow maps": (lambda: "a: " + "{a: " * 25_000, "yaml"),
    "aliases": (lambda: make_aliases("[{0}, {0}, {0}, {0}, {0}, {0}, {0}, {0}, {0}]"), "yaml"),
    "merges": (lambda: make_aliases("{{k: {0}, l: {0}, m: {0}}}"), "yaml"),
    "an alias of itself": (lambda: "a: &a {b: *a}\nc: &c [*c]\n", "yaml"),
    "JSON": (lambda: '{"a": ' + "[" * 100_000, "json"),
    "JSON objects": (lambda: '{"a": ' * 20_000 + "1" + "}" * 20_000, "json"),
    "a number": (lambda: '{"a": ' + "1" * 90_000 + "}", "json"),
    "TOML": (lambda: "a = " + "[" * 90_000, "toml"),
    "TOML keys": (lambda: ".".join("a" * 30_000) + " = 1", "toml"),
    "TOML comments": (lambda: "a = [\n" + "#\n" * 40_000 + "]", "toml"),
}  # fmt: skip


@pytest.mark.parametrize("name", HUGE)
def test_what_is_large_is_bounded(name: str) -> None:
    make_text, kind = HUGE[name]
    source = Source("huge", make_text(), kind)
    start = time.process_time()
    launches_found = parse_launches(source)
    assert time.process_time() - start < LIMIT_SECONDS
    assert sum(len(word.text) for launch in launches_found for word in launch.words) < 20_000_000
