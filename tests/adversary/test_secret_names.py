"""Secrets by fifty names, of ten shapes, wherever a launch can hold them: no output of lint or smoke shows one."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from attncheck.core.io import secrets
from attncheck.core.io.secrets import values
from attncheck.core.io.secrets.names import rate_name
from tests.adversary.in_process import run_entry
from tests.adversary.test_secrets import FORMATS, Plants
from tests.core.test_secrets import NO_SECRETS

NAMES_WORDS = """
PGPASSWORD SSHPASS DBPASS DB_PASS RABBITMQ_PASS MYSQL_PWD MYSQLPWD REDIS_PASSWORD SMTP_PASS SMTPPASSWORD ROOTPW
LDAP_BINDPW VAULT_PASS DOCKER_PASS DOCKERPASS MQTT_PASS MONGOPASS FTPPASS KEYSTOREPASS GPG_PASSPHRASE GPGPASSPHRASE
USERPASSWD ADMINPWD APIKEY API_KEY MYAPIKEY OPENAI_API_KEY OPENAIKEY WANDB_API_KEY WANDBKEY HF_TOKEN HFTOKEN
GITHUBTOKEN GITTOKEN SLACKTOKEN TELEGRAM_TOKEN BOTTOKEN TG_TOKEN AUTH_TOKEN JWTSECRET CLIENTSECRET CLIENT_SECRET
COOKIESECRET AWS_SECRET_ACCESS_KEY AWSSECRETKEY ENCRYPTIONKEY SIGNING_KEY MASTERKEY PRIVATEKEY STORAGE_ACCOUNT_KEY
HF_TOKEN_READ
"""
NAMES = NAMES_WORDS.split()
SHAPES = ("word", "short", "symbols", "base64", "uuid", "wandb_hex", "aws_secret", "telegram", "hugging_face", "jwt")
JOB = "deepspeed --module openrlhf.cli.train_sft --packing_samples --attn_implementation flash_attention_2 --pretrain m"
TRAINER = """\
import os, sys
raise RuntimeError(f"no connection: {dict(os.environ)} {sys.argv}")
"""
TRAINER_OPTIONS = (
    "--model_name_or_path Qwen/Qwen2.5-7B --data_path data.jsonl --output_dir out --max_steps 1000 "
    "--per_device_train_batch_size 8 --gradient_accumulation_steps 4 --learning_rate 2e-5 --max_length 2048"
)

Write = Callable[[Path, Mapping[str, str]], str]


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    secrets.forget_secrets()
    yield
    secrets.forget_secrets()


def quote(value: str) -> str:
    return f"'{value}'"


def write_script(make_line: Callable[[Mapping[str, str]], str]) -> Write:
    """Return what writes a launch script with a line that holds the secrets before the job, or the job in it."""

    def write(folder: Path, given: Mapping[str, str]) -> str:
        line = make_line(given)
        (folder / "run.sh").write_text(line if JOB in line else f"{line}\n{JOB}\n")
        return "run.sh"

    return write


def join(template: str, separator: str = " ") -> Callable[[Mapping[str, str]], str]:
    """Return what writes every name with its value as the template has it."""
    return lambda given: separator.join(template.format(name=name, value=value) for name, value in given.items())


def add_options(template: str) -> Callable[[Mapping[str, str]], str]:
    """Return what writes options for the names that are those of secrets in small letters too."""
    return lambda given: (
        f"{JOB} "
        + join(template)({name.lower(): value for name, value in given.items() if rate_name(name.lower()) == "strong"})
    )


def write_yaml(folder: Path, given: Mapping[str, str]) -> str:
    lines = [f"{name.lower()}: {value}" for name, value in given.items() if rate_name(name.lower()) == "strong"]
    lines += [f'{name}: "{value}"' for name, value in given.items()]
    settings = "model_name_or_path: x\nstage: sft\ndataset: d\ntemplate: qwen\nlearning_rat: 1.0\nflash_attn: fa2\n"
    (folder / "sft.yaml").write_text(settings + "\n".join(lines) + "\n")
    return "sft.yaml"


def write_json(folder: Path, given: Mapping[str, str]) -> str:
    settings = {"model_name_or_path": "x", "stage": "sft", "dataset": "d", "template": "qwen", "learning_rat": 1.0}
    (folder / "sft.json").write_text(json.dumps({**settings, **given, "env": {**given}}))
    return "sft.json"


def write_accelerate(folder: Path, given: Mapping[str, str]) -> str:
    """Write a configuration of accelerate and one of DeepSpeed, which a launch with the secrets as options names."""
    lines = "".join(f"{name}: {value}\n" for name, value in given.items())
    (folder / "accelerate.yaml").write_text(
        f"num_processes: 2\ndeepspeed_config:\n  deepspeed_config_file: zero.json\n{lines}"
    )
    (folder / "zero.json").write_text(json.dumps({"zero_optimization": {"stage": 2}, **given}))
    options = " ".join(
        f"--{name.lower()}='{value}'" for name, value in given.items() if rate_name(name.lower()) == "strong"
    )
    (folder / "run.sh").write_text(
        f"accelerate launch --config_file accelerate.yaml -m{JOB.partition('--module')[2]} {options}\n"
    )
    return "run.sh"


PLACES: dict[str, Write] = {
    "export": write_script(lambda given: "export " + join("{name}='{value}'")(given)),
    "export, plain and in double quotes": write_script(lambda given: join('export {name}="{value}"', "; ")(given)),
    "assignments before the job": write_script(lambda given: join("{name}='{value}'")(given) + f" {JOB}"),
    "env": write_script(lambda given: "env " + join("{name}='{value}'")(given) + f" {JOB}"),
    "a container": write_script(lambda given: "docker run " + join("-e {name}='{value}'")(given) + f" image {JOB}"),
    "mpirun": write_script(lambda given: "mpirun -np 8 " + join("-x {name}='{value}'")(given) + f" {JOB}"),
    "a shell's string": write_script(lambda given: 'bash -c "' + join("export {name}='{value}'; ")(given) + f'{JOB}"'),
    "options with =": write_script(add_options("--{name}='{value}'")),
    "options with a space": write_script(add_options("--{name} '{value}'")),
    "a dictionary in an option": write_script(lambda given: f"{JOB} --note '{json.dumps(given)}'"),
    "a comment": write_script(lambda given: "# " + join("export {name}={value}", "; ")(given)),
    "a here-document of Python": write_script(
        lambda given: "python - <<'EOF'\nimport os; " + join("os.environ['{name}'] = '{value}'", "; ")(given) + "\nEOF"
    ),
    "a here-document of JSON": write_script(lambda given: "cat > settings.json <<EOF\n" + json.dumps(given) + "\nEOF"),
    "a pipe": write_script(lambda given: join("echo '{value}' | docker login -u x --password-stdin", "; ")(given)),
    "here-strings": write_script(lambda given: join("gh auth login --with-token <<< '{value}'", "; ")(given)),
    "headers": write_script(
        lambda given: "curl " + join("-H 'Authorization: token {value}'")(given) + " https://host/x"
    ),
    "logins": write_script(lambda given: "curl " + join("-u 'bob:{value}'")(given) + " https://host/x"),
    "Ray": write_script(
        lambda given: f"ray job submit --runtime-env-json '{json.dumps({'env_vars': dict(given)})}' -- {JOB}"
    ),
    "connection strings": write_script(
        lambda given: "export DSN='" + join("Server=x;User Id=sa;Password={value};Encrypt=yes", ";")(given) + "'"
    ),
    "YAML": write_yaml,
    "JSON": write_json,
    "accelerate and DeepSpeed": write_accelerate,
}


def plant(plants: Plants, place: str, turn: int = 0) -> dict[str, str]:
    """Return a value for each name, of another shape in each turn."""
    return {
        name: plants.plant(SHAPES[(number + turn) % len(SHAPES)], f"{name} in {place}")
        for number, name in enumerate(NAMES)
    }


def lint(folder: Path, launch: str) -> bytes:
    """Return all that lint prints and writes about a launch, in every format."""
    outputs = [f"--output={name}={folder / name}" for name in FORMATS]
    options = [] if launch.endswith(".sh") else ["--framework", "llamafactory"]  # most keys are of no framework
    options += ["--target", "h100x8,openrlhf=0.11.2", "-v", *outputs]
    ended = run_entry("lint", str(folder / launch), *options, seconds=60)
    assert ended.code in (0, 1), ended.stderr
    written = b"\n".join((folder / name).read_bytes() for name in FORMATS)
    return f"{ended.stdout}\n{ended.stderr}\n".encode() + written


TURNS = [pytest.param(turn, marks=[pytest.mark.nightly] * (turn > 0)) for turn in range(len(SHAPES))]


@pytest.mark.parametrize("turn", TURNS)
@pytest.mark.parametrize("place", PLACES)
def test_lint_shows_no_secret(place: str, turn: int, tmp_path: Path) -> None:
    plants = Plants()
    printed = lint(tmp_path, PLACES[place](tmp_path, plant(plants, place, turn)))
    assert not plants.find_leaks(printed)


@pytest.mark.parametrize("place", PLACES)
def test_lint_without_its_masks_shows_the_secrets(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each place is one that lint shows: without the masks, what is planted there is found."""
    plants = Plants()
    launch = PLACES[place](tmp_path, plant(plants, place))
    monkeypatch.setattr(secrets, "mask_secrets", lambda text: text)
    monkeypatch.setattr(values, "is_secret_value", lambda name, value: False)
    shown = plants.find_leaks(lint(tmp_path, launch))
    assert len(shown) > len(NAMES) * 0.6, sorted(shown)


def test_what_only_resembles_a_secret_stays_readable(tmp_path: Path) -> None:
    controls = {name: f"block{number}a" for number, name in enumerate(NO_SECRETS.split())}
    assert len(controls) >= 60
    (tmp_path / "run.sh").write_text("export " + join("{name}={value}")(controls) + f"\n{JOB}\n")
    printed = lint(tmp_path, "run.sh").decode()
    assert all(f"{name}={value}" in printed for name, value in controls.items())


def test_smoke_shows_no_secret(tmp_path: Path) -> None:
    """A launch whose trainer fails at once and prints all that it was given, its environment and its arguments."""
    plants = Plants()
    sets = [join("{name}='{value}'")(plant(plants, place)) for place in ("an export", "an assignment")]
    options = add_options("--{name} '{value}'")(plant(plants, "an option"))[len(JOB) :]
    encoded = base64.b64encode(f"bob:{plants.plant('hugging_face', 'base64')}".encode()).decode()
    (tmp_path / "train.py").write_text(TRAINER)
    (tmp_path / "run.sh").write_text(
        f"export {sets[0]} REGISTRY='{encoded}' PLAIN=plainvalue9\n"
        f"{sets[1]} python train.py {TRAINER_OPTIONS} {options}\n"
    )
    outputs = [f"--output={name}={tmp_path / name}" for name in FORMATS]
    ended = subprocess.run(
        [sys.executable, "-m", "attncheck", "smoke", "--device", "cpu", "-v", *outputs, "run.sh"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        timeout=300,
    )
    written = b"\n".join((tmp_path / name).read_bytes() for name in FORMATS)
    assert b"no connection" in written and "PGPASSWORD" in written.decode(), ended.stderr.decode()
    assert not plants.find_leaks(ended.stdout + ended.stderr + written)
    assert b"plainvalue9" not in ended.stdout + ended.stderr + written  # no secret by its name: an export's value
