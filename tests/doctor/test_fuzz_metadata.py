"""Ten thousand damaged METADATA, RECORD, WHEEL, direct_url.json and pip.conf texts: never an exception, never slow."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attncheck.doctor.probes.payload import privacy
from attncheck.doctor.probes.payload.packages import distributions, metadata, pip_config

METADATA = (
    b"Metadata-Version: 2.4\nName: flash_attn\nVersion: 2.8.3\nLicense: a\n        b\nRequires-Python: >=3.9\n"
    b'Requires-Dist: torch\nRequires-Dist: einops; extra == "x"\nAuthor: M\xc3\xbcller\n\n# FlashAttention\n'
)
RECORD = (
    b"flash_attn/__init__.py,sha256=8YM6-UCsESTgncBd2SIwiHFBEDXnW5C_Tb46gx3AO1A,285\n"
    b'"flash_attn/a,b.py",sha256=8YM6,12\nflash_attn-2.8.3.dist-info/RECORD,,\n../../bin/x,,\n'
)
WHEEL = b"Wheel-Version: 1.0\nGenerator: setuptools (81.0.0)\nRoot-Is-Purelib: false\nTag: cp312-cp312-linux_x86_64\n"
DIRECT_URL = (
    b'{"url": "https://u:p@h/x.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}, "dir_info": {"editable": true}}'
)
PIP_CONF = (
    b"[global]\nindex-url = https://u:p@h/simple\nextra-index-url =\n  https://a\n  https://b\n[install]\nno-deps: 1\n"
)
FRAGMENTS = (
    b"\0",
    b"\xff\xfe",
    b"\xed\xa0\x80",
    b"\r\n",
    b"\n\n",
    b":",
    b",",
    b'"',
    b"[",
    b"]",
    b"{",
    b"=",
    b" ",
    b"9" * 5000,
)
LONG_FRAGMENTS = (
    b"[" * 2000,
    b"../" * 300,
    b"\xd9\xa3",
    b"\x1b[31m",
    b"Name: \n",
    b"Name: ../../x\n",
    b"://" * 50,
    b"e" * 9000,
)

ReadBytes = Callable[[bytes], Any]
READERS: list[tuple[bytes, ReadBytes]] = [
    (METADATA, metadata.parse_headers),
    (RECORD, metadata.parse_record),
    (WHEEL, metadata.parse_wheel_tags),
    (DIRECT_URL, metadata.parse_direct_url),
    (PIP_CONF, lambda data: pip_config.parse_ini(data.decode("utf-8", "replace"))),
]


def damage(rng: random.Random, data: bytes) -> bytes:
    """Return `data` with a few pieces cut, doubled, flipped or replaced."""
    for _ in range(rng.randint(1, 6)):
        at, length = rng.randrange(len(data) + 1), rng.randint(0, 40)
        piece = rng.choice(
            [b"", data[at : at + length] * 2, bytes([rng.randrange(256)]), rng.choice(FRAGMENTS + LONG_FRAGMENTS)]
        )
        data = data[:at] + piece + data[at + length :]
        if rng.random() < 0.1:
            data = data[: rng.randrange(len(data) + 1)]
    return data


def test_readers_survive_nine_thousand_inputs() -> None:
    rng = random.Random(20261121)
    slowest = 0.0
    for number in range(9000):
        intact, reader = READERS[number % len(READERS)]
        data = damage(rng, intact)
        began = time.process_time()
        answer = reader(data)
        privacy.strip_url_secrets(data.decode("latin-1"))
        if number % 10 == 0:
            privacy.scrub([data.decode("utf-8", "surrogateescape"), str(answer)])
        slowest = max(slowest, time.process_time() - began)
    assert slowest < 0.5


def test_whole_directories_survive_a_thousand_damages(tmp_path: Path) -> None:
    rng = random.Random(20261122)
    names = ["flash_attn-2.8.3", "flash_attn_4-4.0.0b36", "torch-2.9.0"]
    texts = {"METADATA": METADATA, "RECORD": RECORD, "WHEEL": WHEEL, "direct_url.json": DIRECT_URL}
    for name in names:
        (tmp_path / f"{name}.dist-info").mkdir()
    for _ in range(100):
        for name in names:
            for file, intact in texts.items():
                (tmp_path / f"{name}.dist-info" / file).write_bytes(damage(rng, intact))
        installed, _, _ = distributions.collect_distributions([str(tmp_path)])
        assert len(installed) == len(names)
        assert not [item for item in installed if "reading it failed" in item["problem"]]
        privacy.scrub(installed)
