"""Ten thousand damaged configurations: each gives a model or a reason, in the shape that the judge reads."""

from __future__ import annotations

import copy
import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attncheck.core import codec
from attncheck.core.facts import Fact
from attncheck.core.model import Model
from attncheck.doctor.probes.payload.model import accepts, config
from tests.doctor import test_model_config as t

SEED = 20261121
WHOLE = (t.LLAMA, t.GEMMA3, t.GEMMA4, t.GPT_OSS, t.DEEPSEEK_V3, t.LLAMA4, t.FALCON_40B, t.MPT, t.CHATGLM, t.QWEN2_5_VL)
WEIRD: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 3, 2**31, 2**70, -(2**70), 1.5, float("nan"), float("inf"), 10**5000),
    *("", "x", "32", "\x00", "é" * 50, "\ud800", [], {}, [[]], [None], ["x"] * 20, list(range(20)), {"a": {}}),
    *({"text_config": {}}, {"num_attention_heads": 1}, "sliding_attention", ["full_attention"] * 5000),
)


@dataclass(frozen=True)
class Holder:
    model: Fact[Model]


def check(answer: dict[str, Any]) -> None:
    """Hold an answer to the shape that is read on the other side."""
    holder = codec.read(Holder, {"model": answer})
    codec.dumps(holder)


def damaged(random_: random.Random, names: list[str]) -> dict[str, Any]:
    """Return a configuration with a few values replaced, removed, moved or nested."""
    document = copy.deepcopy(random_.choice(WHOLE))
    for _ in range(random_.randint(1, 5)):
        place = document
        nested = [value for value in document.values() if isinstance(value, dict)]
        if nested and random_.random() < 0.5:
            place = random_.choice(nested)
        name = random_.choice(names)
        if random_.random() < 0.15:
            place.pop(name, None)
        else:
            place[name] = copy.deepcopy(random_.choice(WEIRD))
    return document


def test_damaged_values() -> None:
    random_ = random.Random(SEED)
    names = sorted({name for document in WHOLE for name in document} | set(config._TEXT_PARTS))
    names += ["sliding_window", "layer_types", "head_dim", "num_kv_heads", "rope_scaling", "attn_type_list"]
    names += ["hybrid_override_pattern", "block_types", "sliding_window_pattern", "per_layer_config", "is_decoder"]
    for _ in range(9000):
        document = damaged(random_, names)
        answer = config.derive(document)
        extra = {"source": "x", "remote_code": False, "remote_imports": [], "tokenizer": {"absent": ""}}
        model = {**answer, **extra, "accepts": {"absent": ""}}
        check({"known": model})
        merged = accepts.merge({"accepts": {"absent": ""}, "resolved": damaged(random_, names)}, model)
        check({"known": merged})


def test_damaged_bytes(tmp_path: Path) -> None:
    random_ = random.Random(SEED + 1)
    texts = [json.dumps(document).encode() for document in WHOLE]
    for _ in range(1000):
        content = bytearray(random_.choice(texts))
        for _ in range(random_.randint(1, 6)):
            at = random_.randrange(len(content))
            if random_.random() < 0.3:
                del content[at : at + random_.randint(1, 40)]
            else:
                content[at] = random_.randrange(256)
            if not content:
                break
        for name in ("config.json", "tokenizer_config.json"):
            (tmp_path / name).write_bytes(bytes(content))
        check(config.look(str(tmp_path)))
