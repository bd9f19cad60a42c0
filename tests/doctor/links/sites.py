"""Released wheels laid unpacked, each in its own folder, so that any releases are side by side on a path."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.doctor.environments import write_stub_flash_attn
from tests.wheels import CACHE

SITES = CACHE.parent / "sites"
# What each release of transformers needs in other releases than the newest.
BESIDE_TRANSFORMERS = {
    "4.51.3": ("tokenizers==0.21.4", "huggingface_hub==0.36.0"),
    "4.53.3": ("tokenizers==0.21.4", "huggingface_hub==0.36.0"),
    "4.55.4": ("tokenizers==0.21.4", "huggingface_hub==0.36.0"),
    "4.57.6": ("tokenizers==0.22.1", "huggingface_hub==0.36.0"),
    "5.0.0": ("tokenizers==0.22.2", "huggingface_hub==1.3.0"),
    "5.3.0": ("tokenizers==0.22.2", "huggingface_hub==1.8.0"),
    "5.4.0": ("tokenizers==0.22.2", "huggingface_hub==1.8.0"),
    "5.10.1": ("tokenizers==0.22.2", "huggingface_hub==1.8.0"),
    "5.17.0": ("tokenizers==0.23.3", "huggingface_hub==1.33.0"),
    "5.23.0": ("tokenizers==0.23.3", "huggingface_hub==1.33.0"),
}
# What consumers import at the top of their modules, so that they get as far as the packages that are linked.
LIGHT_DEPENDENCIES = """
    datasets==4.8.5 pyarrow pandas dill==0.3.8 multiprocess==0.70.16 xxhash aiohttp aiohappyeyeballs aiosignal
    frozenlist multidict propcache yarl requests urllib3 charset-normalizer idna certifi einops fire termcolor psutil
    pytz six cloudpickle orjson addict colorama python-dotenv dacite json-repair jsonlines narwhals safetensors
    sentencepiece protobuf tiktoken fastapi starlette uvicorn opentelemetry-api pyzmq msgspec cachetools modelscope tyro
    docstring-parser typeguard shtab tensorboard absl-py grpcio werkzeug tensordict pyvers codetiming torchdata ray
    msgpack hydra-core omegaconf antlr4-python3-runtime pydantic pydantic-core annotated-types typing-inspection regex
"""
DISTRIBUTION_PACKAGES = {"ring-flash-attn": "ring_flash_attn", "liger-kernel": "liger_kernel", "ms-swift": "swift"}
FLASH_ATTN_STUB = "flash-attn==stub"


@dataclass(frozen=True)
class Pair:
    """A consumer's release, the transformers it is alongside, and what else is on the path: "name==version"."""

    consumer: str
    transformers: str
    companions: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Return a file name without its suffix: "ring-flash-attn-0.1.8__transformers-5.4.0"."""
        return f"{self.consumer}__transformers-{self.transformers}".replace("==", "-")

    @property
    def package(self) -> str:
        """Return the name by which the consumer is imported."""
        distribution = self.consumer.partition("==")[0]
        return DISTRIBUTION_PACKAGES.get(distribution, distribution)


def lay_requirements(folder: Path, requirements: tuple[str, ...]) -> Path:
    """Return the folder, with these requirements laid in it, and nothing that they require in turn."""
    done = folder / ".laid"
    if not done.exists():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--upgrade"]
        subprocess.run([*command, "--target", str(folder), *requirements], check=True, timeout=1800)
        done.touch()
    return folder


def lay(requirement: str) -> Path:
    """Return a folder that holds one release, and what goes with it if it is transformers."""
    if requirement == FLASH_ATTN_STUB:
        return lay_stub_flash_attn(SITES / "flash-attn-stub")
    name, _, version = requirement.partition("==")
    beside = BESIDE_TRANSFORMERS.get(version, ()) if name == "transformers" else ()
    return lay_requirements(SITES / f"{name}-{version}", (requirement, *beside))


def lay_stub_flash_attn(folder: Path) -> Path:
    """Return a folder with a flash-attn 2.8.3 that offers the names of the real interface and computes nothing."""
    if not (folder / "flash_attn").is_dir():
        write_stub_flash_attn(folder)
    return folder


def list_sites(pair: Pair) -> list[Path]:
    """Return the folders of a pair in the order in which they are on the path."""
    requirements = [pair.consumer, f"transformers=={pair.transformers}", *pair.companions]
    return [*map(lay, requirements), lay_requirements(SITES / "light-dependencies", tuple(LIGHT_DEPENDENCIES.split()))]
