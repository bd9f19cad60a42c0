"""Which names promise a secret: `hub_token` and `WANDB_API_KEY` do, `pad_token`, `max_tokens` and `prompt_key` do not.

A name is read word by word, whatever joins the words (snake, kebab, dotted, camel case). Its last word decides, with
the word before it: a `key_path` is a path, a `secret_santa` none of our business.
"""

from __future__ import annotations

import re
from functools import cache, lru_cache
from typing import Literal

MASK = "…"
# "strong": any value but a placeholder is one. "likely": a value with a digit or of some length. "weak": random only.
Strength = Literal["strong", "likely", "weak", ""]

_WORDS = r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+"
_TRAILING_WORDS = "prod dev staging plaintext base64 b64 primary secondary"
_TRAILING = frozenset(_TRAILING_WORDS.split())
_PASSWORDS_WORDS = "password passwords passwd passphrase passphrases pwd passcode"
_PASSWORDS = frozenset(_PASSWORDS_WORDS.split())
_NOT_PASSWORDS_WORDS = "no use has is require requires max min num ask"
_NOT_PASSWORDS = frozenset(_NOT_PASSWORDS_WORDS.split())
_JOINED_WORDS = """
apikey apikeys accesskey secretkey privatekey authkey accesstoken authtoken apitoken hubtoken hftoken ghtoken
bottoken authorization clientsecret appsecret webhook webhooks secret secrets wandbkey githubtoken accesskeyid
secretaccesskey
"""
_JOINED = frozenset(_JOINED_WORDS.split())
_PASS_OWNERS_WORDS = "db database smtp mail mysql redis proxy http https ftp user ssh sudo registry root"
_PASS_OWNERS = frozenset(_PASS_OWNERS_WORDS.split())
# Words before "key": with these it opens something; with others (input_key, sort_key) only a random value is secret.
_KEY_OWNERS_WORDS = """
api access secret private wandb auth encryption signing account storage subscription hf huggingface openai anthropic
gemini comet neptune swanlab clearml ssh deploy shared langsmith tavily serper serpapi deepseek dashscope
"""
_KEY_OWNERS = frozenset(_KEY_OWNERS_WORDS.split())
_NOT_KEYS_WORDS = "cache public pub lookup hash dedup index sort primary foreign group"
_NOT_KEYS = frozenset(_NOT_KEYS_WORDS.split())
_TOKEN_OWNERS_WORDS = """
hub hf huggingface face access auth api secret bearer github gh gitlab git wandb refresh private bot slack discord
telegram personal deploy job ms modelscope swanlab clearml neptune comet mlflow replicate registry npm pypi twine
sas aws session security oauth jwt csrf ngrok vault jupyter notebook databricks login service admin upload om kaggle
azure modelers openmind client registration x
"""
_TOKEN_OWNERS = frozenset(_TOKEN_OWNERS_WORDS.split())
# Words before "token": a token of text, not one that opens something.
_TEXT_TOKENS_WORDS = """
pad eos bos unk cls sep mask special image img video audio vision start end begin stop think thought tool next last
first max min num per new prompt response output input global padding separator boi eoi box ref assistant system
role control chat code time speech object latent memory single extra add query action state target source patch word
text sub multi draft each by a the to of decoder encoder newline space sentinel reserved context placeholder trigger
loss in out total prefix suffix middle fim answer step use user any no invalid unexpected unknown label observation
function im turn header frame visual im_start im_end
"""
_TEXT_TOKENS = frozenset(_TEXT_TOKENS_WORDS.split())


@cache
def compile_once(expression: str) -> re.Pattern[str]:
    """Return the compiled expression; most are never needed, and compiling all would cost a command's start 10 ms."""
    return re.compile(expression)


@lru_cache(2048)
def rate_name(name: str) -> Strength:
    """Return how strongly a name promises a secret, "" where it does not."""
    words = [word.lower() for word in compile_once(_WORDS).findall(name)]
    while len(words) > 1 and words[-1] in _TRAILING:
        words.pop()
    if not words:
        return ""
    if words[-1] == "id" and words[-3:-1] == ["access", "key"]:
        words.pop()
    if words[-1] in ("url", "uri", "link", "address") and words[-2:-1] in (["webhook"], ["hook"]):
        return "strong"
    return _rate_words(words[-1], words[-2] if len(words) > 1 else "")


def _rate_words(last: str, owner: str) -> Strength:
    if last in _PASSWORDS:
        return "" if owner in _NOT_PASSWORDS else "strong"
    if last in _JOINED:
        return "strong"
    if last in ("key", "keys"):
        return "strong" if owner in _KEY_OWNERS else "" if owner in _NOT_KEYS else "weak"
    if last == "token":
        return "likely" if not owner else "strong" if owner in _TOKEN_OWNERS else _rate_text_token(owner)
    if last == "tokens":
        return "strong" if owner in ("api", "hf", "hub", "access", "auth") else ""
    if last == "pass":
        return "strong" if owner in _PASS_OWNERS else ""
    if last in ("auth", "credential", "credentials", "cookie", "cookies", "wandb", "ak", "sk", "signature", "sig"):
        return "weak"
    return ""


def _rate_text_token(owner: str) -> Strength:
    return "" if owner in _TEXT_TOKENS else "weak"


def is_password_name(name: str) -> bool:
    """Return whether a name is that of a password, which may consist of digits or words."""
    words = [word.lower() for word in compile_once(_WORDS).findall(name)]
    return bool(words) and (words[-1] in _PASSWORDS or words[-1] == "pass")


def is_webhook_name(name: str) -> bool:
    """Return whether a name is that of a webhook, whose URL is the secret."""
    return "hook" in name.lower()
