"""--online, against a real HTTP server on loopback that serves two of the Hub's addresses."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest

from attncheck.core.io.errors import BadUsage, Unanswered
from attncheck.doctor.probes import hub_download

FILES = {
    "/acme/tiny/resolve/main/config.json": json.dumps({"model_type": "llama"}),
    "/acme/bare/resolve/main/tokenizer_config.json": "{}",
}


class HubHandler(BaseHTTPRequestHandler):
    authorizations: ClassVar[list[str | None]] = []

    def do_GET(self) -> None:
        self.authorizations.append(self.headers.get("Authorization"))
        if self.path.startswith("/acme/broken/"):
            self.send_error(500)
        elif self.path.startswith("/acme/huge/"):
            self.send_response(200)
            self.end_headers()
            try:
                for _ in range(40):
                    self.wfile.write(b" " * (1 << 20))
            except OSError:
                return
        elif self.path in FILES:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(FILES[self.path].encode())
        else:
            self.send_error(404)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), HubHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setenv("HF_ENDPOINT", address)
    HubHandler.authorizations.clear()
    yield address
    server.shutdown()
    server.server_close()


def test_fetches_what_there_is(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert hub_download.fetch_config_files("acme/tiny") == {"config.json": '{"model_type": "llama"}'}
    assert set(HubHandler.authorizations) == {"Bearer hf_secret"}


@pytest.mark.parametrize(
    ("model", "kind", "message"),
    [
        ("acme/nothing", BadUsage, "the Hub has no acme/nothing"),
        ("acme/bare", BadUsage, "the Hub has no acme/bare with a config.json"),
        ("acme/broken", Unanswered, "the Hub answered 500"),
        ("acme/huge", BadUsage, "larger than 32 MiB"),
        ("../etc/passwd x", BadUsage, "neither a local folder nor a Hub name"),
    ],
)
def test_what_cannot_be_had_is_one_line(endpoint: str, model: str, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        hub_download.fetch_config_files(model)


def test_a_hub_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(Unanswered, match="the Hub cannot be reached"):
        hub_download.fetch_config_files("acme/tiny")


def test_a_folder_is_left_to_the_probe(tmp_path: object) -> None:
    assert hub_download.fetch_config_files(str(tmp_path)) is None
