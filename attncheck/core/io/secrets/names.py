"""Decides which names indicate a secret: `hub_token` and `PGPASSWORD` do, `pad_token` and `prompt_key` do not.

A name is read word by word, in any style (snake, kebab, dotted, camel case, or joined: DBPASS). Its last word decides,
together with the word before it: a `key_path` is a path, a `secret_santa` is not a secret. A name in capitals is an
environment variable, in which PASS, TOKEN or AUTH almost always means a secret.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Literal

MASK = "…"
# "strong": any value except a placeholder is secret. "likely": a value with a digit, or a long one. "weak": random
# only.
Strength = Literal["strong", "likely", "weak", ""]

_WORDS = r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+"
_TRAILING_WORDS = "prod dev staging plaintext base64 b64 primary secondary read write backup"
_TRAILING = frozenset(_TRAILING_WORDS.split())
# Nouns that end a name, also without a separator before them: SSHPASS, mysqlpwd, MYAPIKEY.
_JOINED_NOUN = r"(\w+?)(passwords?|passwd|passphrases?|passcode|pass|pwd|pw|secrets?|webhooks?|tokens?|keys?)"
_PASSWORDS_WORDS = "password passwords passwd passphrase passphrases pwd passcode"
_PASSWORDS = frozenset(_PASSWORDS_WORDS.split())
_NOT_PASSWORDS_WORDS = "no use has is require requires max min num ask"
_NOT_PASSWORDS = frozenset(_NOT_PASSWORDS_WORDS.split())
_STRONG_WORDS = "authorization webhook webhooks secret secrets accesskeyid"
_STRONG = frozenset(_STRONG_WORDS.split())
_WEAK_WORDS = "auth creds credential credentials cookie cookies wandb ak sk signature sig"
_WEAK = frozenset(_WEAK_WORDS.split())
_WEAK_VARIABLES_WORDS = "token auth creds credential credentials cookie"  # likely if a variable has such a name
_WEAK_VARIABLES = frozenset(_WEAK_VARIABLES_WORDS.split())
_PASS_OWNERS_WORDS = """
db database smtp mail email mysql redis proxy http https ftp user ssh sudo registry root rabbitmq amqp mqtt mongo pg
postgres sql ldap vault docker elastic kafka admin key keystore truststore my login
"""
_PASS_OWNERS = frozenset(_PASS_OWNERS_WORDS.split())
_LOGINS = frozenset({"auth", "creds", "credential", "credentials", "userpwd"})
_LEADING = _PASSWORDS | {"pass", "token", "secret"}
# Words before "pass": one run over the data, a filter, or a piece of another word (BYPASS, COMPASS).
_NOT_PASSES_WORDS = """
by com sur encom over under tres multi low high band all single one two three dual first second third last next final
forward backward fwd bwd pre sub render full each per n num test eval train warmup compiler inference opt optimizer
optimization fusion graph fx inductor decode prefill is did must no per current extra re conv
"""
_NOT_PASSES = frozenset(_NOT_PASSES_WORDS.split())
# Words before "key" that make it a credential; with others (input_key, sort_key) only a random value is secret.
_KEY_OWNERS_WORDS = """
api access secret private wandb auth encryption signing account storage subscription hf huggingface openai anthropic
gemini comet neptune swanlab clearml ssh deploy shared langsmith tavily serper serpapi deepseek dashscope master license
fernet jwt hmac aes consumer
"""
_KEY_OWNERS = frozenset(_KEY_OWNERS_WORDS.split())
_NOT_KEYS_WORDS = "cache public pub lookup hash dedup index sort primary foreign group mon tur don hot joc hoc whis"
_NOT_KEYS = frozenset(_NOT_KEYS_WORDS.split())
_TOKEN_OWNERS_WORDS = """
hub hf huggingface face access auth api secret bearer github gh gitlab git wandb refresh private bot slack discord
telegram tg personal deploy job ms modelscope swanlab clearml neptune comet mlflow replicate registry npm pypi twine
sas aws session security oauth jwt csrf ngrok vault jupyter notebook databricks login service admin upload om kaggle
azure modelers openmind client registration x
"""
_TOKEN_OWNERS = frozenset(_TOKEN_OWNERS_WORDS.split())
# Words before "token" that make it a token of text, not a credential.
_TEXT_TOKENS_WORDS = """
pad eos bos unk cls sep mask special image img video audio vision start end begin stop think thought tool next last
first max min num per new prompt response output input global padding separator boi eoi box ref assistant system
role control chat code time speech object latent memory single extra add query action state target source patch word
text sub multi draft each by a the to of decoder encoder newline space sentinel reserved context placeholder trigger
loss in out total prefix suffix middle fim answer step use user any no invalid unexpected unknown label observation
function im turn header frame visual im_start im_end
"""
_TEXT_TOKENS = frozenset(_TEXT_TOKENS_WORDS.split())


@lru_cache(None)
def compile_once(expression: str) -> re.Pattern[str]:
    """Return the compiled expression. Most are never needed, and compiling all would add 10 ms to a command's start."""
    return re.compile(expression)


@lru_cache(2048)
def rate_name(name: str) -> Strength:
    """Return how strongly a name suggests a secret, "" if it does not."""
    words = list(split_name(name))
    is_variable = name.rpartition(".")[2].isupper()
    if is_variable and len(words) == 2 and words[1] in _PASS_OWNERS | _TOKEN_OWNERS:
        words.sort(key=lambda word: word in _LEADING)  # TOKEN_HF is HF_TOKEN
    if not words:
        return ""
    if words[-1] == "id" and words[-3:-1] in (["access", "key"], ["private", "key"]):
        words.pop()
    if words[-1] in ("url", "uri", "link", "address") and words[-2:-1] in (["webhook"], ["hook"]):
        return "strong"
    rating = _rate_words(words[-1], words[-2] if len(words) > 1 else "")
    return _rate_variable(words, rating) if is_variable else rating


@lru_cache(2048)
def split_name(name: str) -> tuple[str, ...]:
    """Return the words of a name in lower case; a secret's noun is a separate word even if joined to its owner."""
    words = [word.lower() for word in compile_once(_WORDS).findall(name)]
    while len(words) > 1 and words[-1] in _TRAILING:
        words.pop()
    joined = compile_once(_JOINED_NOUN).fullmatch(words[-1]) if words else None
    return (*words[:-1], *joined.groups()) if joined else tuple(words)


def _rate_variable(words: list[str], rating: Strength) -> Strength:
    """Return how strongly the name of an environment variable suggests a secret; PASS on its own also counts."""
    if rating == "likely" and words[-1] in ("pass", "pw") and len(words) > 1:
        return "strong"
    return "likely" if rating == "weak" and words[-1] in _WEAK_VARIABLES else rating


def _rate_words(last: str, owner: str) -> Strength:
    if last in _PASSWORDS:
        return "" if owner in _NOT_PASSWORDS else "strong"
    if last in _STRONG:
        return "strong"
    if last in ("key", "keys"):
        return "strong" if _opens(owner) else "" if owner in _NOT_KEYS else "weak"
    if last == "token":
        return (
            "likely" if not owner else "strong" if owner in _TOKEN_OWNERS else "" if owner in _TEXT_TOKENS else "weak"
        )
    if last == "tokens":
        return "strong" if owner in ("api", "hf", "hub", "access", "auth") else ""
    if last in ("pass", "pw"):
        return "strong" if owner in _PASS_OWNERS else "" if owner in _NOT_PASSES else "likely"
    if last in _WEAK:
        return "weak"
    return ""


def _opens(owner: str) -> bool:
    """Return whether a key with this owner is a credential; in joined words such as `awssecret` the end counts."""
    return owner in _KEY_OWNERS or any(len(name) > 2 and owner.endswith(name) for name in _KEY_OWNERS)


def is_password_name(name: str) -> bool:
    """Return whether a name is a password's, whose value may be words or digits."""
    words = split_name(name)
    return bool(words) and (words[-1] in _PASSWORDS or words[-1] in ("pass", "pw"))


def is_login_name(name: str) -> bool:
    """Return whether a name may hold a user with a password: `--auth user:password`."""
    words = split_name(name)
    return bool(words) and words[-1] in _LOGINS


def is_webhook_name(name: str) -> bool:
    """Return whether a name is a webhook's; its URL is the secret."""
    return "hook" in name.lower()
