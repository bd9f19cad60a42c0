"""The families of what doctor finds in an environment: a healthy one of stubs, in which one thing is damaged."""

from __future__ import annotations

import json

from attncheck.selftest.faults import Sandbox, SandboxAction
from tests.selftest.planted import PairedFamily, PairedFault, environment

DOCTOR_ARGUMENTS = ("doctor", "--profile", "all", "--format", "json", "--timeout", "4")
LLAMA_CONFIG = {
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
TOKENIZER_CONFIG = {"pad_token": "<pad>", "eos_token": "</s>", "padding_side": "right"}


def setup_doctor(sandbox: Sandbox) -> None:
    """Make the healthy environment, and have doctor examine all of it."""
    environment.setup_environment(sandbox)
    sandbox.arguments += [*DOCTOR_ARGUMENTS, "--python", sandbox.python]


def setup_doctor_with_model(sandbox: Sandbox) -> None:
    """Make the healthy environment with a Llama to train in it."""
    setup_doctor(sandbox)
    write_model(sandbox)
    sandbox.arguments.append(str(sandbox.folder / "model"))


def with_packages(*packages: str, without: tuple[str, ...] = (), **variables: str) -> SandboxAction:
    """Return what installs "name==version"s, removes distributions and sets variables."""

    def inject(sandbox: Sandbox) -> None:
        environment.remove_distributions(sandbox, *without)
        for package in packages:
            name, _, version = package.partition("==")
            environment.install_distribution(sandbox, name, version)
        sandbox.environ |= variables

    return inject


def all_of(*actions: SandboxAction) -> SandboxAction:
    """Return what injects one thing after another."""

    def inject(sandbox: Sandbox) -> None:
        for action in actions:
            action(sandbox)

    return inject


def with_module(path: str, text: str) -> SandboxAction:
    """Return what overwrites a module and leaves its RECORD as it is."""
    return lambda sandbox: environment.write_module(sandbox, path, text)


def write_model(sandbox: Sandbox, tokenizer: dict[str, object] | None = None, **fields: object) -> None:
    """Write the model's config.json with `fields` changed (None: left out), and its tokenizer's."""
    config = {name: value for name, value in {**LLAMA_CONFIG, **fields}.items() if value is not None}
    sandbox.write_file("model/config.json", json.dumps(config))
    settings = {**TOKENIZER_CONFIG, **(tokenizer or {})}
    tokenizer_config = {name: value for name, value in settings.items() if value is not None}
    sandbox.write_file("model/tokenizer_config.json", json.dumps(tokenizer_config))


ENVIRONMENT = PairedFamily(
    "environment", "doctor on a healthy environment of stubs, with two H200s", setup_doctor, ("linux",)
)
MODEL = PairedFamily(
    "model",
    "doctor on a healthy environment, named a Llama",
    setup_doctor_with_model,
    ("linux",),
    extends=ENVIRONMENT,
    adds=("model/config.json",),
)


def make_fault(
    name: str,
    code: str,
    title: str,
    imitates: str,
    inject: SandboxAction,
    *mentions: str,
    family: PairedFamily = ENVIRONMENT,
    needs: tuple[str, ...] = (),
    relies_on: tuple[str, ...] = (),
) -> PairedFault:
    """Return a fault of an environment that raises one code."""
    return PairedFault(name, family, (code,), title, imitates, inject, mentions, needs, relies_on)
