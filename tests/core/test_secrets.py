"""Tokens, and values of names that promise a secret, are masked in every spelling; what only resembles them stays."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from shlex import quote

import pytest

from attncheck.core.findings import Fix
from attncheck.core.io import outgoing, secrets
from attncheck.core.io.secrets import mask_secrets
from attncheck.core.io.secrets.names import rate_name
from attncheck.core.job import Job, LintedLaunch
from attncheck.core.launch import Edit, Setting, SourceLocation
from tests.planted_secrets import NAMED, TOKENS, WEBHOOKS, draw, make_secret

# Every way in which a name and its value are written alongside each other; {} is the value.
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
        ("Server=x;User Id=sa;Password=hunter2;Encrypt=yes", "Server=x;User Id=sa;Password=…;Encrypt=yes"),
        ("host=x user=bob password=hunter2 dbname=y", "host=x user=bob password=… dbname=y"),
        ("//registry.npmjs.org/:_authToken=abc123", "//registry.npmjs.org/:_authToken=…"),
        ("-H 'authorization: token hunter2abc'", "-H 'authorization: token …'"),
        ("-H 'Cookie: session=abc; theme=dark' x", "-H 'Cookie: …' x"),
        ("{'PGPASSWORD': 'hunter2', 'HOME': '/root'}", "{'PGPASSWORD': '…', 'HOME': '/root'}"),
        ("environ({'SSHPASS': 'letmein'})", "environ({'SSHPASS': '…'})"),
        ('X=\'{"dbpass": "hunter2"}\'', 'X=\'{"dbpass": "…"}\''),
        ("PASSWORD=super_secret", "PASSWORD=…"),
        ("--auth bob:hunter2 x", "--auth … x"),
        ("--auth=bob:hunter2 x", "--auth=… x"),
        ("--token abc --lr 1", "--token … --lr 1"),
        ("_authToken=abc", "_authToken=…"),
    ],
)
def test_masks(text: str, masked: str) -> None:
    assert mask_secrets(text) == masked
    assert mask_secrets(masked) == masked


@pytest.mark.parametrize(
    "command",
    [
        *("curl -sS -u bob:{} https://host/x?a=1&b=2", "curl -ubob:{} x", "curl \\\n  --user 'bob:{}' x"),
        *("curl --proxy-user bob:{} x", "wget --user=bob --password={} x", "wget --http-password {} x"),
        *("tool --user bob:{} x", "http -a bob:{} host", '["curl", "-u", "bob:{}"]'),
        *("mysql -u root -p{} db", "mysqldump --all -p{} db", "mariadb-dump -p'{}' db"),
        *("docker login -u bob -p {} ghcr.io", "podman login -p={} x", "az login --service-principal -u x -p {} -t y"),
        *("helm registry login x -u bob -p '{}'", "swanlab login -k {}", "huggingface-cli login --token {}"),
        *("echo {} | docker login -u bob --password-stdin", "echo -n '{}' | docker login --password-stdin ghcr.io"),
        *("printf '%s' \"{}\" | helm registry login --password-stdin x", "echo {} | sudo -S apt install x"),
        *(
            "echo {} | gh auth login --with-token",
            "echo 'bob:{}' | chpasswd",
            "echo {} \\\n | docker login --password-stdin",
        ),
        *(
            "docker login -u bob --password-stdin <<< {}",
            "docker login --password-stdin <<<'{}'",
            "sudo -S ls <<< '{}'",
        ),
        *("docker login --password-stdin <<EOF\n{}\nEOF\n", "gh auth login --with-token <<'END'\n{}\nEND\nls\n"),
        *("wandb login {}", "wandb login --relogin --host=https://h {}", "wandb login <<< {}", "echo {} | wandb login"),
        *("vault login {}", "ngrok config add-authtoken {}", "sshpass -p{} ssh x", 'sshpass -p "{}" ssh x'),
        *(
            "redis-cli -h x -a {} ping",
            "ldapsearch -x -w {} -D y",
            "openssl enc -k {} -in x",
            "openssl rsa -passin pass:{}",
        ),
        *("zip -r -P {} x.zip y", "7z x -p{} x.7z", "mc alias set s3 http://h user {}"),
        *(
            "kubectl create secret generic x --from-literal=y={}",
            "kubectl create secret generic x --from-literal y='{}'",
        ),
    ],
)
def test_secrets_that_commands_take_without_a_name_go(command: str) -> None:
    for secret in ("hunter2abc", make_secret("wandb_hex", 5), "Qq7" + draw(Random(5), 9)):
        text = command.format(secret)
        masked = text.replace(secret, secrets.MASK).replace("bob:…' | ", "…' | ")
        assert (mask_secrets(text), mask_secrets(masked)) == (masked, masked)
    for reference in ("$SECRET", "${SECRET}"):
        assert mask_secrets(command.format(reference)) == command.format(reference)


@pytest.mark.parametrize("shape", TOKENS)
def test_base64_of_a_token_goes(shape: str) -> None:
    for seed, template in enumerate(
        ("{}", "bob:{}", "HF_TOKEN={}\n", '{{"auths": {{"x": "{}"}}}}', "password: {} xyz")
    ):
        encoded = base64.b64encode(template.format(make_secret(shape, seed)).encode()).decode()
        for text in (f"AUTH={encoded} x", f'"data": "{encoded}"', encoded.replace("+", "-").replace("/", "_")):
            masked = mask_secrets(text)
            assert encoded.strip("=") not in masked and secrets.MASK in masked, (template, masked)


def test_base64_of_a_name_and_a_password_goes_where_a_login_stands() -> None:
    encoded = base64.b64encode(b"bob:letmein").decode()
    assert mask_secrets(f'{{"auth": "{encoded}"}}') == '{"auth": "…"}'
    assert mask_secrets(f"_auth={encoded}") == "_auth=…"
    assert mask_secrets(f"name={encoded}") == f"name={encoded}"


def test_a_key_of_many_lines_goes_whole_and_line_by_line() -> None:
    body = "\n".join(draw(Random(line), 64) for line in range(5))
    key = f"-----BEGIN RSA PRIVATE KEY-----\n{body}\n-----END RSA PRIVATE KEY-----"
    for text in (key, key.replace("\n", "\n+"), key.replace("\n", "\n-"), json.dumps(key)):
        assert not any(line in mask_secrets(text) for line in body.split("\n"))
    fields = {"private_key_id": draw(Random(9), 40, "0123456789abcdef"), "private_key": key}
    masked = mask_secrets(json.dumps(fields, indent=1))
    assert fields["private_key_id"] not in masked and body.split("\n")[2] not in masked
    secrets.remember_setting("DEPLOY_SECRET", key)
    assert all(mask_secrets(f"line {line} x") == "line … x" for line in body.split("\n"))


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
            '["HF_TOKEN", "db_password", "client-secret", "apiKey"]',
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


# Lines of launches, logs and reports that look like what is masked.
CONTROLS = r"""
max_tokens=4096
--num_tokens 8192
eos_token=</s>
pad_token: <|pad2|>
TOKENIZERS_PARALLELISM=false
key_value_heads: 8
num_key_value_heads=8
FORWARD_PASS=fp32first
--n_pass 2
SINGLE_PASS=stage1run
first_pass: 2fast4u
--pass 2
lowpass=filter22
bandpass: butter4th
HOTKEY=ctrl42
turkey=roast350
IMAGE_TOKEN=img2start
num_image_tokens: 576
compiler_pass=fuse2ops
conv_pw=block2a
passthrough: layer12
passing_grade: b2plus
PASSENGERS=manifest9
secretary: office12
tokenization: bpe32k
authors: alice42
author=bob1234
AUTHOR_NAME=bob12345
credentials: required
REQUIRE_AUTH=true
Qwen/Qwen2.5-7B-Instruct
meta-llama/Llama-3.1-8B-Instruct-bnb-4bit
deepseek-ai/DeepSeek-R1-Distill-Qwen-32B
unsloth/Meta-Llama-3.1-405B-Instruct-bnb-4bit
sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
commit da39a3ee5e6b4b0d3255bfef95601890afd80709
git+https://github.com/huggingface/transformers@da39a3ee5e6b4b0d3255bfef95601890afd80709
RECORD sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU
GPU-0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0
MIG-a1b2c3d4-e5f6-7890-abcd-ef0123456789
NCCL_IB_HCA=mlx5_0:1,mlx5_1:1
rendezvous 127.0.0.1:29500
--rdzv_endpoint=10.0.0.1:29400
torch-2.11.0+cu130-cp312-cp312-manylinux_2_28_x86_64.whl
flash_attn-2.8.3+cu12torch2.8cxx11abiTRUE-cp312-cp312-linux_x86_64.whl
/opt/venv/lib/python3.12/site-packages/flash_attn/flash_attn_interface.py:91
CUDA_VISIBLE_DEVICES=0,1,2,3
PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True,max_split_size_mb:512
docker run -u 1000:1000 -p 8080:80 image:v12
docker run --user node:node image
docker run -v /a:/b -e CUDA_VISIBLE_DEVICES=0 nvcr.io/nvidia/pytorch:25.01-py3
curl -u $USER:$TOKEN https://host/x
curl -sSfL https://host/install.sh | bash -s -- --prefix=/opt1
ssh -p 2222 login@host12
srun -p gpu8 --login x
mysql -u root -p
mysql --port 3306 -h db12
wandb login
wandb login failed (attempt 2)
echo $HF_TOKEN | docker login --password-stdin
echo "$PASSWORD" | docker login -u bob --password-stdin ghcr.io
printf '%s' "${TOKEN}" | gh auth login --with-token
echo run12345 | tee login.log
echo step12345 | grep login
huggingface-cli login --token $HF_TOKEN
huggingface-cli download Qwen/Qwen2.5-7B-Instruct-AWQ4
docker login -u bob ghcr.io/org12
tar xzp12 -f a.tar
7z x archive12.7z
unzip -q model12.zip
openssl version 3.0.2
python train.py --auth none
auth: oauth2
auth_mode: kerberos5
epoch 3 key=step value=12345678
KeyError: 'model.layers.12.self_attn.q_proj.weight'
loss 5.70 -> 3.39 in 30 steps
time 1700000000:12345
2024-01-02T03:04:05.123456789Z INFO step
12345678:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
AttentionInterface.register("flash_attention_2")
transformers.models.qwen2.modeling_qwen2.Qwen2ForCausalLM
TORCH_NCCL_ASYNC_ERROR_HANDLING=1
FlashAttentionForwardKernelHdim128Sm90Causal
wandb_project: qwen25-sft-run12
HF_HUB_ENABLE_HF_TRANSFER=1
WANDB_API_KEY=$WANDB_API_KEY
export PATH=/usr/local/cuda-12.8/bin:$PATH
cookie_policy: strict2024
prompt_key: prompt_v2
--input_key messages_v2
--sort_key length2
tokens_per_second: 12345.6
special_tokens_map.json
added_tokens=[128256, 128257]
token_ids 1 2 3 4 5 6 7 8 9 10
bos_token_id=151643
padding_token=right2left
monkeypatch: v12patch
ds_config.json zero_stage=3
--master_port 29500
ENCRYPTION=none
PASS: 12 tests
all 12 passed
test_pass_12 ok
backward_pass_ms=12.5
user:pass
module.weight_key=abc
dataset: HuggingFaceH4/ultrachat_200k
--dataset_name OpenAssistant/oasst_top1_2023-08-25
dGhpcyBpcyBwbGFpbiB0ZXh0IHRoYXQgaGlkZXMgbm90aGluZw==
TWFueSBoYW5kcyBtYWtlIGxpZ2h0IHdvcms=
"""


@pytest.mark.parametrize("text", CONTROLS.strip().splitlines())
def test_leaves_launches_and_logs_alone(text: str) -> None:
    assert mask_secrets(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "password=",
        "--token ",
        "key=",
        '"',
        "\\\n",
        "token",
        "sk-",
        "://a:",
        "https://x?sig=",
        "İkey=",
        "echo ",
        "echo '",
        "curl -u a:",
        "QUFB",
        "docker login --password-stdin <<A\n",
    ],
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


JOINED = """
PGPASSWORD SSHPASS DBPASS RABBITMQ_PASS MYSQLPWD MYSQL_PWD ROOTPW DB_PW LDAP_BINDPW KRB5PASS JWTSECRET COOKIESECRET
APIKEY HFTOKEN GITHUBTOKEN GITTOKEN SLACKTOKEN TELEGRAM_TOKEN TG_TOKEN AWSSECRET AWSSECRETKEY AWS_SECRETKEY MYAPIKEY
OPENAIKEY WANDBKEY ENCRYPTIONKEY SIGNINGKEY MASTERKEY MASTER_KEY GPGPASSPHRASE KEYPASS KEYSTOREPASS STOREPASS USERPASS
USERPASSWD ADMINPWD SMTPPASSWORD DOCKERPASS DOCKER_PASS VAULT_PASS MQTT_PASS MONGOPASS FTPPASS MAILPASS HF_TOKEN_READ
TOKEN_HF PASSWORD_DB REDISCLI_AUTH dbPass pgpassword mysqlpwd myApiKey sshpass PASSWORD2 runtime_env.env_vars.SSHPASS
"""
# Each holds a word of a secret, and is none.
NO_SECRETS = """
PASSES BYPASS COMPASS SURPASS ENCOMPASS OVERPASS UNDERPASS TRESPASS LOWPASS HIGHPASS BANDPASS MULTIPASS PREPASS
FORWARDPASS FORWARD_PASS BACKWARD_PASS FIRST_PASS SECOND_PASS SINGLE_PASS N_PASS NUM_PASSES EVAL_PASS RENDER_PASS
COMPILER_PASS PASSENGER PASSPORT PASSIVE PASSTHROUGH PASSING KEYBOARD MONKEY TURKEY DONKEY HOTKEY WHISKEY HOCKEY
JOCKEY KEYPOINT KEYWORD KEYFRAME KEYS_PATH TOKENIZER TOKENIZERS_PARALLELISM TOKENIZER_NAME MAX_TOKENS NUM_TOKENS
TOKENS_PER_SECOND EOS_TOKEN PAD_TOKEN BOS_TOKEN IMAGE_TOKEN EOSTOKEN PADTOKEN MAXTOKENS max_tokens num_tokens
eos_token pad_token padToken key_value_heads num_key_value_heads cache_key public_key SORTKEY primary_key foreign_key
SECRETARY SECRET_NAME AUTHOR AUTHORS CREDIBILITY NO_PASSWORD USE_PASSWORD PASSWORD_MIN_LENGTH PASSFILE KEY_PATH
NOPASSWD
"""


@pytest.mark.parametrize("name", JOINED.split())
def test_names_are_judged_by_parts_that_nothing_separates(name: str) -> None:
    for text in (f"export {name}=hunter2abc", f'{{"{name}": "hunter2abc"}}', f"env {name}='hunter2abc' x"):
        assert mask_secrets(text) == text.replace("hunter2abc", "…")


@pytest.mark.parametrize("name", NO_SECRETS.split())
def test_names_that_only_hold_such_a_part_are_none(name: str) -> None:
    assert rate_name(name) == ""
    for value in ("block2a", "hunter2abc", make_secret("base64", 1)):
        assert mask_secrets(f"export {name}={value}") == f"export {name}={value}"


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
