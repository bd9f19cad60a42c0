"""Damaged configurations, ten thousand nightly: each gives a model or a reason, in the shape that attncheck reads."""

from __future__ import annotations

import copy
import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from attncheck.core import codec
from attncheck.core.facts import Fact
from attncheck.core.model import Model
from attncheck.doctor.probes.payload.model import accepts, config
from tests.doctor import test_model_config as configs

SEED = 20261121
CONFIGS = (
    configs.LLAMA,
    configs.GEMMA3,
    configs.GEMMA4,
    configs.GPT_OSS,
    configs.DEEPSEEK_V3,
    configs.LLAMA4,
    configs.FALCON_40B,
    configs.MPT,
    configs.CHATGLM,
    configs.QWEN2_5_VL,
)
WRONG_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 3, 2**31, 2**70, -(2**70), 1.5, float("nan"), float("inf"), 10**5000),
    *("", "x", "32", "\x00", "é" * 50, "\ud800", [], {}, [[]], [None], ["x"] * 20, list(range(20)), {"a": {}}),
    *({"text_config": {}}, {"num_attention_heads": 1}, "sliding_attention", ["full_attention"] * 5000),
)


@dataclass(frozen=True)
class Holder:
    model: Fact[Model]


def assert_readable(answer: dict[str, Any]) -> None:
    """Assert that attncheck can read `answer` as a model fact, and write it."""
    holder = codec.read(Holder, {"model": answer})
    codec.dumps(holder)


def damage_config(rng: random.Random, names: list[str]) -> dict[str, Any]:
    """Return a configuration with a few values replaced, removed, moved or nested."""
    document = copy.deepcopy(rng.choice(CONFIGS))
    for _ in range(rng.randint(1, 5)):
        target = document
        nested = [value for value in document.values() if isinstance(value, dict)]
        if nested and rng.random() < 0.5:
            target = rng.choice(nested)
        name = rng.choice(names)
        if rng.random() < 0.15:
            target.pop(name, None)
        else:
            target[name] = copy.deepcopy(rng.choice(WRONG_VALUES))
    return document


@pytest.mark.parametrize("rounds", [500, pytest.param(9_000, marks=pytest.mark.nightly)])
def test_damaged_values(rounds: int) -> None:
    rng = random.Random(SEED)
    names = sorted({name for document in CONFIGS for name in document} | set(config._TEXT_CONFIGS))
    names += ["sliding_window", "layer_types", "head_dim", "num_kv_heads", "rope_scaling", "attn_type_list"]
    names += ["hybrid_override_pattern", "block_types", "sliding_window_pattern", "per_layer_config", "is_decoder"]
    for _ in range(rounds):
        document = damage_config(rng, names)
        answer = config.derive_model(document)
        extra = {"source": "x", "remote_code": False, "remote_imports": [], "tokenizer": {"absent": ""}}
        model = {**answer, **extra, "accepts": {"absent": ""}}
        assert_readable({"known": model})
        merged = accepts.merge_resolved({"accepts": {"absent": ""}, "resolved": damage_config(rng, names)}, model)
        assert_readable({"known": merged})


def test_damaged_bytes(tmp_path: Path) -> None:
    rng = random.Random(SEED + 1)
    texts = [json.dumps(document).encode() for document in CONFIGS]
    for _ in range(300):
        content = bytearray(rng.choice(texts))
        for _ in range(rng.randint(1, 6)):
            at = rng.randrange(len(content))
            if rng.random() < 0.3:
                del content[at : at + rng.randint(1, 40)]
            else:
                content[at] = rng.randrange(256)
            if not content:
                break
        for name in ("config.json", "tokenizer_config.json"):
            (tmp_path / name).write_bytes(bytes(content))
        assert_readable(config.collect_model(str(tmp_path)))
