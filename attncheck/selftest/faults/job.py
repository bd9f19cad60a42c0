"""The family of what doctor finds in an environment: a healthy one of stubs, in which one thing is spoilt."""

from __future__ import annotations

import json

from attncheck.selftest.faults import Family, Ground, Plant, environment

DOCTOR = ("doctor", "--profile", "all", "--format", "json", "--timeout", "4")
LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "torch_dtype": "bfloat16",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 4,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "rope_theta": 500000.0,
}
TOKENIZER = {"pad_token": "<pad>", "eos_token": "</s>", "padding_side": "right"}


def lay(ground: Ground) -> None:
    """Lay the healthy environment, and ask doctor about all of it."""
    environment.lay(ground)
    ground.words += [*DOCTOR, "--python", ground.python]


def lay_with_model(ground: Ground) -> None:
    """Lay the healthy environment with a Llama to train in it."""
    lay(ground)
    model(ground)
    ground.words.append(str(ground.folder / "model"))


def having(*packages: str, without: tuple[str, ...] = (), **variables: str) -> Plant:
    """Return what installs "name==version"s, removes distributions and sets variables."""

    def plant(ground: Ground) -> None:
        environment.remove(ground, *without)
        for package in packages:
            name, _, version = package.partition("==")
            environment.install(ground, name, version)
        ground.environ |= variables

    return plant


def both(*plants: Plant) -> Plant:
    """Return what plants one thing after another."""

    def plant(ground: Ground) -> None:
        for each in plants:
            each(ground)

    return plant


def source(path: str, text: str) -> Plant:
    """Return what writes a module over the one that is there, its RECORD left as it is."""
    return lambda ground: environment.module(ground, path, text)


def model(ground: Ground, tokenizer: dict[str, object] | None = None, **fields: object) -> None:
    """Write the model's config.json with `fields` changed (None: left out), and its tokenizer's."""
    whole = {name: value for name, value in {**LLAMA, **fields}.items() if value is not None}
    ground.write("model/config.json", json.dumps(whole))
    settings = {name: value for name, value in {**TOKENIZER, **(tokenizer or {})}.items() if value is not None}
    ground.write("model/tokenizer_config.json", json.dumps(settings))


ENVIRONMENT = Family("environment", "doctor on a healthy environment of stubs, with two H200s", lay, ("linux",))
MODEL = Family("model", "doctor on a healthy environment, asked about a Llama", lay_with_model, ("linux",))
