"""The ledger of a pull: the real pip, over real HTTP, from an index on the loopback."""

from __future__ import annotations

import http.server
import os
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

import onhand
from onhand.errors import DownloadError
from onhand.library import ModelStore, catalog
from onhand.library.catalog import CatalogEntry
from support.tiny import write_tiny
from support.wheels import make_wheel, source_of

HOST = "127.0.0.1"


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    """Where an index answers, from a folder."""
    (tmp_path / "index").mkdir()
    with http.server.ThreadingHTTPServer((HOST, 0), partial(Quiet, directory=tmp_path / "index")) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@pytest.fixture
def wheel(tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model in that index and in the catalogue; the data folder is the test's."""
    monkeypatch.setenv("ONHAND_HOME", str(tmp_path / "home"))
    for name in [name for name in os.environ if name.startswith("PIP_") or name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("PIP_INDEX_URL", f"http://somebody:secret@{HOST}:{port}/simple")
    content = write_tiny(tmp_path / "tiny.gguf").read_bytes()
    (tmp_path / "index" / "simple").mkdir()
    made = make_wheel(tmp_path / "index" / "simple" / "tiny-model", content)
    source = source_of(made, content)
    entry = CatalogEntry(name="tiny", title="Tiny", license="Apache-2.0", size_bytes=len(content), source=source)
    monkeypatch.setattr(catalog, "CATALOG", (entry,))
    return made


def pull(home: Path) -> None:
    with onhand.open("tiny", pull=True) as model:
        assert model.package.folder.is_relative_to(home)


@pytest.mark.usefixtures("online")
def test_a_pull_leaves_its_connections_and_what_came_in_the_ledger(wheel: Path, port: int, tmp_path: Path) -> None:
    pull(tmp_path / "home")
    found = onhand.audit()
    assert {(use.outcome, use.host, use.port) for use in found.uses} == {("allowed", HOST, port)}
    assert {(use.purpose, use.by) for use in found.uses} == {("pull tiny", "user")}
    assert [use.action for use in found.uses][-1] == "receive"
    assert {use.action for use in found.uses} == {"connect", "receive"}
    assert found.uses[-1].size_bytes == wheel.stat().st_size
    assert "secret" not in found.path.read_text()


@pytest.mark.usefixtures("online")
def test_what_is_on_this_device_connects_nowhere(wheel: Path, tmp_path: Path) -> None:
    pull(tmp_path / "home")
    before = onhand.audit().uses
    pull(tmp_path / "home")
    assert onhand.audit().uses == before


@pytest.mark.usefixtures("online")
def test_a_failed_pull_is_in_the_ledger_too(wheel: Path, tmp_path: Path) -> None:
    wheel.unlink()
    with pytest.raises(DownloadError):
        pull(tmp_path / "home")
    uses = onhand.audit().uses
    assert uses
    assert {use.action for use in uses} == {"connect"}


@pytest.mark.usefixtures("online")
def test_a_ledger_that_cannot_be_written_costs_no_pull(wheel: Path, tmp_path: Path) -> None:
    (tmp_path / "home" / "network.jsonl").mkdir(parents=True)
    pull(tmp_path / "home")


def test_pulling_offline_is_an_error_at_once_that_says_what_to_do(wheel: Path, tmp_path: Path) -> None:
    with onhand.offline(), pytest.raises(onhand.OfflineError, match=r"tiny cannot be fetched.*ONHAND_OFFLINE"):
        onhand.open("tiny", pull=True)
    assert list((tmp_path / "home" / "models").iterdir()) == [tmp_path / "home" / "models" / ".lock"]
    assert onhand.audit().uses == ()  # nothing was so much as tried


def test_offline_what_is_on_this_device_opens_with_pull_too(wheel: Path, tmp_path: Path) -> None:
    store = ModelStore(tmp_path / "home")
    store.add(write_tiny(tmp_path / "tiny.gguf"), "tiny")
    with onhand.offline():
        pull(tmp_path / "home")
