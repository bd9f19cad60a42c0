"""Tokens, and values of names that promise a secret, are masked in every spelling; what only resembles them stays."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from shlex import quote

import pytest

from attncheck.core import outgoing, secrets
from attncheck.core.findings import Fix
from attncheck.core.job import Job, LintedLaunch
from attncheck.core.launch import Edit, Setting, SourceLocation
from attncheck.core.secrets import mask_secrets
from attncheck.core.secrets.names import rate_name
from tests.planted_secrets import NAMED, TOKENS, WEBHOOKS, draw, make_secret

# Every way in which a name and its value are written beside each other; {} is the value.
SPELLINGS = [
    "{name}={}",
    "export {name}={}",
    "export {name}='{}' OTHER=1",
    '{name}="{}" torchrun train.py',
    "{name}: {}",
    '  {name}: "{}"  # comment',
    "- {name}: {}",
    '{{"{name}": "{}", "b": 1}}',
    "{{'{name}': '{}'}}",
    '{{\\"{name}\\": \\"{}\\"}}',
    "--{name} {}",
    "--{name}={} --lr 1e-5",
    "--{name} \\\n    {} \\\n    --lr 1",
    "+    --{name} {} \\",
    "-{name}: {}",
    "++trainer.{name}={}",
    "+ray_init.runtime_env.env_vars.{name}={}",
    'os.environ["{name}"] = "{}"',
    'os.environ.setdefault("{name}", "{}")',
    "login({name}='{}')",
    "Config({name}='{}', x=1)",
    "setenv {name} {}",
    "ENV {name} {}",
    "- name: {name}\n  value: {}",
    '{{"name": "{name}", "value": "{}"}}',
    "{name}: >-\n  {}\n",
    "error: request failed with {name}={}",
    "ValueError: bad {{'{name}': '{}'}}",
    "{name} := {}",
]
NAMES = ["WANDB_API_KEY", "HF_TOKEN", "hub_token", "db_password", "client-secret", "apiKey", "accessToken", "DB_PASS"]


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    secrets.forget_secrets()
    yield
    secrets.forget_secrets()


@pytest.mark.parametrize("shape", TOKENS)
def test_known_tokens_go_wherever_they_stand(shape: str) -> None:
    for seed, template in enumerate(("{}", "got {}.", "x='{}',", "prefix_{} y", "a\n{}\nb", '"{}"', "({})", "key {}")):
        secret = make_secret(shape, seed)
        masked = mask_secrets(template.format(secret))
        assert secret not in masked and masked.endswith(template.format(secrets.MASK)[-2:]), template


@pytest.mark.parametrize("shape", WEBHOOKS)
def test_webhooks_lose_their_last_part(shape: str) -> None:
    secret = make_secret(shape, 1)
    assert mask_secrets(f"curl {WEBHOOKS[shape][0]}{secret} -d x") == f"curl {WEBHOOKS[shape][0]}… -d x"


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_values_of_secret_names_go_in_every_spelling(spelling: str) -> None:
    for name in NAMES:
        for shape in NAMED:
            secret = make_secret(shape, 7)
            text = spelling.format(secret, name=name)
            assert mask_secrets(text) == text.replace(secret, secrets.MASK)


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("password=hunter2", "password=…"),
        ("PASSWORD=1234", "PASSWORD=…"),
        ("password: correct horse # of the day", "password: … # of the day"),
        ("https://u:p@ss@host/x", "https://…@host/x"),
        ("https://u:p/w@host/x", "https://…@host/x"),
        ("git+https://oauth2:abc@host/r.git", "git+https://…@host/r.git"),
        ("redis://:abc@host:6379/0", "redis://…@host:6379/0"),
        ("https://host/x?a=1&sig=abcdefgh&b=2", "https://host/x?a=1&sig=…&b=2"),
        ("Authorization: Basic dXNlcjpwYXNzd29yZA==", "Authorization: Basic …"),
        ("curl -H 'Authorization: Bearer abc123def456' x", "curl -H 'Authorization: Bearer …' x"),
        ("curl -u bob:hunter2 x", "curl -u bob:… x"),
        ("sshpass -p hunter2 ssh x", "sshpass -p … ssh x"),
        ("machine api.wandb.ai login user password hunter2", "machine api.wandb.ai login user password …"),
        (
            "-----BEGIN PRIVATE KEY-----\nMIIEabcdefghijklmnop\n-----END PRIVATE KEY-----\nx",
            "-----BEGIN PRIVATE KEY-----…\nx",
        ),
        ("Server=x;AccountKey=abc123==;Y=1", "Server=x;AccountKey=…;Y=1"),
        ("--token abc --lr 1", "--token … --lr 1"),
        ("_authToken=abc", "_authToken=…"),
    ],
)
def test_masks(text: str, masked: str) -> None:
    assert mask_secrets(text) == masked
    assert mask_secrets(masked) == masked


def test_hex_is_a_key_by_its_name_alone() -> None:
    digits = draw(Random(1), 40, "0123456789abcdef")
    for text in (
        f"wandb login {digits}",
        f"wandb login --relogin {digits}",
        f"--use_wandb {digits}",
        f"--wandb.key {digits}",
    ):
        assert mask_secrets(text) == text.replace(digits, "…")
    for text in (
        f"commit {digits}",
        f"revision={digits}",
        f"sha256:{digits}",
        f"cache_key={digits}",
        f'"digest": "{digits}"',
    ):
        assert mask_secrets(text) == text


@pytest.mark.parametrize(
    "text",
    [
        *(
            "max_tokens=4096",
            "--max_num_batched_tokens 8192",
            "tokenizer: fast",
            "--tokenizer_key a1b2c3d4",
            "num_tokens: 3",
        ),
        *(
            "pad_token=<|endoftext|>",
            "eos_token: '</s>'",
            "pad_token: hello12345",
            "image_token=img2_start",
            "eos_token_id=2",
        ),
        *("token_level_loss: true", "add_special_tokens=False", "trust_remote_code=True", "--use_auth_token True"),
        *("--key_path /x/y", "sort_key=a1", "data.prompt_key=prompt", "reward_key: score_v2", "--input_key message"),
        *(
            "secret_santa=bob",
            "token_type_ids=abc123",
            "--api_key_file /run/k",
            "password_min_length=12",
            "use_password: yes",
        ),
        *(
            "WANDB_API_KEY=$WANDB_API_KEY",
            'HF_TOKEN="${HF_TOKEN:-}"',
            "HF_TOKEN=$(cat ~/.token)",
            "api_key={{ api_key }}",
        ),
        *(
            "WANDB_API_KEY=xxx",
            "HF_TOKEN=your_key_here",
            "--hub_token <token>",
            "api_key=EMPTY",
            "HF_TOKEN=hf_xxxxxxxxxxxx",
        ),
        *(
            "WANDB_API_KEY=",
            "token: null",
            "password: ''",
            "api_key=None",
            "token=12345",
            "hub_token: /run/secrets/token",
        ),
        *("--hub_token --lr 1", "api_key=args.api_key", "api_key=os.environ['API_KEY']", "password = getpass()"),
        *(
            "token: str = None",
            "def f(token: Optional[str]):",
            "api_key=api_key",
            "unexpected token: foo",
            "token=hello",
        ),
        *(
            '("TOKEN", "KEY", "SECRET", "PASSWORD", "PASSWD")',
            "the secret: one of them",
            "/etc/passwd: Permission denied",
        ),
        *(
            "PWD=/root/project",
            "disk-0123456789abcdef01234",
            "task-abcdefghij0123456789",
            "hf_transfer",
            "hf_hub_download",
        ),
        *("http://localhost:8080/@scope/x", "ssh://git@github.com/a/b", "https://user@host/x", "https://$U:$T@host/x"),
        *("sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU", "GPU-0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"),
        *(
            "--use_wandb True",
            "wandb_run_name=Qwen2.5-7B-grpo-20240315",
            "--wandb_project openrlhf_202507",
            "use_wandb: run1",
        ),
        *(
            "torch.nn.attention.SDPBackend",
            "numpy>=1.2; extra == 'all'",
            "key.shape = (2, 4096, 8, 128)",
            "KeyError: 'q_proj'",
        ),
    ],
)
def test_leaves_alone(text: str) -> None:
    assert mask_secrets(text) == text


@pytest.mark.parametrize(
    "text", ["password=", "--token ", "key=", '"', "\\\n", "token", "sk-", "://a:", "https://x?sig=", "İkey="]
)
def test_long_texts_take_linear_time(text: str) -> None:
    """A text ten times as long may take twenty times as long, not a hundred."""

    def measure(length: int) -> float:
        long_text = text * (length // len(text))
        times = []
        for _ in range(3):
            began = time.process_time()
            mask_secrets(long_text)
            times.append(time.process_time() - began)
        return min(times)

    assert measure(40_000) < 20 * measure(4_000) + 0.05


def test_values_that_are_longer_than_any_look_ahead_go_whole() -> None:
    secret = draw(Random(3), 5000)
    for template in ("password={} x", 'hub_token: "{}" # y', "'api_key': '{}'}}"):
        assert mask_secrets(template.format(secret)) == template.format("…")


def test_a_remembered_secret_goes_however_it_is_quoted() -> None:
    secret = "it's 7%\"<p>&" + draw(Random(4), 12)
    secrets.remember_setting("hub_password", secret)
    for spelt in (secret, json.dumps(secret), repr(secret), quote(secret)):
        assert draw(Random(4), 12) not in mask_secrets(f"cannot use {spelt} here")


@pytest.mark.parametrize(
    ("name", "value"),
    [("password", "transformers"), ("password", "abc1"), ("max_tokens", "a1b2c3d4e5f6"), ("api_key", "your_key_1234")],
)
def test_a_value_that_may_mean_something_else_is_not_remembered(name: str, value: str) -> None:
    secrets.remember_setting(name, value)
    assert mask_secrets(f"the value {value} stays") == f"the value {value} stays"


def test_names_are_read_word_by_word() -> None:
    strong = (
        "HF_TOKEN hubToken hub-token logger.wandb.key API-KEY apikey x-api-key AWS_SECRET_ACCESS_KEY slack_webhook_url"
    )
    none = (
        "tokens max_tokens eosToken tokenizer key_path api_key_env secret_name cache_key monkey author turkey keyboard"
    )
    assert {rate_name(name) for name in strong.split()} == {"strong"}
    assert {rate_name(name) for name in none.split()} == {""}


@dataclass(frozen=True)
class Record:
    name: str
    texts: tuple[str, ...]
    settings: dict[str, str]


def test_a_tree_is_cleaned_by_names_and_kept_where_nothing_is_hidden() -> None:
    place = SourceLocation("run.sh", 1, 1)
    harmless = (
        Record("x", ("a", "b"), {"max_tokens": "12"}),
        Setting("--prompt_key", "prompt", place, (0, 1)),
        3,
        None,
    )
    assert outgoing.clean(harmless) is harmless
    assert outgoing.clean(Setting("--hub_token", "abc", place, (0, 1))).value == "…"
    assert outgoing.clean(Record("x", ("password=abc",), {"HF_TOKEN": "abc"})) == Record(
        "x", ("password=…",), {"HF_TOKEN": "…"}
    )


def test_a_fix_or_launch_that_lost_a_secret_says_so_once() -> None:
    fix = outgoing.clean(Fix("use it", "setting", "--hub_token abc"))
    assert fix.title == f"use it ({outgoing.MASKED_FIX})" and fix == outgoing.clean(fix)
    edits = (Edit("run.sh", (0, 1), "--hub_token abc"), Edit("run.sh", (2, 3), "--bf16"))
    launch = outgoing.clean(LintedLaunch(Job("trl", "1", "sft"), "+--hub_token abc", "x --hub_token abc", edits, edits))
    assert launch.job.remarks == (outgoing.MASKED_LAUNCH,) and launch == outgoing.clean(launch)
    assert [edit.text for edit in launch.edits] == ["--bf16"]  # an edit with a mask in it would destroy the secret
