"""Downloads a model's small configuration files from the Hugging Face Hub; used only with --online.

The files are kept in memory; the local cache is not written. Source of the URL form: huggingface_hub's `hf_hub_url`
("{endpoint}/{repo_id}/resolve/{revision}/{filename}").
"""

import os
import re
from pathlib import Path

from attncheck.core.io.errors import BadUsage, Unanswered

FILES = ("config.json", "tokenizer_config.json")
MAX_BYTES = 32 << 20
TIMEOUT_SECONDS = 20.0


def fetch_config_files(model: str) -> dict[str, str] | None:
    """Return the text of `model`'s configuration files by name, or None if it is a local folder.

    Honours HF_ENDPOINT and HF_TOKEN. Raises `BadUsage` for a name that the Hub does not have and `Unanswered` if the
    Hub cannot be reached.
    """
    if Path(model).exists():
        return None
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", model):
        raise BadUsage(f"{model!r} is neither a local folder nor a Hub name such as Qwen/Qwen2.5-7B")
    texts = {name: _download_file(model, name) for name in FILES}
    config = texts["config.json"]
    if config is None:
        raise BadUsage(f"the Hub has no {model} with a config.json, or it is gated (set HF_TOKEN)")
    return {name: text for name, text in texts.items() if text is not None}


def _download_file(model: str, name: str) -> str | None:
    from urllib.error import HTTPError, URLError
    from urllib.request import Request, urlopen

    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    request = Request(f"{endpoint}/{model}/resolve/main/{name}")
    if not request.full_url.startswith(("https://", "http://")):
        raise BadUsage(f"HF_ENDPOINT {endpoint!r} is not a web address")
    token = os.environ.get("HF_TOKEN")
    if token:
        request.add_unredirected_header("Authorization", f"Bearer {token}")  # not sent to a host after a redirect
    try:
        with urlopen(request, timeout=TIMEOUT_SECONDS) as response:
            data: bytes = response.read(MAX_BYTES + 1)
    except HTTPError as error:
        if error.code in (401, 403, 404):
            return None
        raise Unanswered(f"the Hub answered {error.code} for {model}/{name}") from None
    except (URLError, OSError) as error:
        raise Unanswered(f"the Hub cannot be reached: {getattr(error, 'reason', error)}") from None
    if len(data) > MAX_BYTES:
        raise BadUsage(f"{model}/{name} is larger than {MAX_BYTES >> 20} MiB")
    return data.decode("utf-8", "replace")
