"""BR-69: connections although the app is "offline". A user's whole day with a model that is here dials nowhere."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import onhand
from support.tiny import write_tiny

# From the first start to the last; what is asked of the SDK is what the app would ask.
DAY = """
set -e
onhand() { "$PYTHON" -m onhand.cli "$@"; }
onhand import "$MODEL" --name tiny
onhand list
onhand show tiny
onhand doctor
onhand ask --no-stdin --max-tokens 3 tiny "What is a KV cache?"
printf 'hello\\nand again\\n' | onhand chat --max-tokens 3 tiny
"$PYTHON" -c "
import asyncio, onhand
with onhand.open('tiny') as model:
    chat = model.chat(options=onhand.GenerationOptions(max_tokens=3))
    chat.ask('Hello', returns=onhand.Grammar.regex('[a-z]{2}'))
    asyncio.run(chat.aask('Hello'))
"
onhand audit
onhand remove --yes tiny
"""


@pytest.fixture
def day(home: Path, tmp_path: Path) -> dict[str, str]:
    """The environment of such a day, without the suite's guard: what is to be seen is what would happen by itself."""
    (tmp_path / "user").mkdir()
    mine = {
        name: value for name, value in os.environ.items() if name not in ("ONHAND_OFFLINE", "ORT_DISABLE_TELEMETRY")
    }
    model = write_tiny(tmp_path / "tiny.gguf")
    return mine | {"PYTHON": sys.executable, "MODEL": str(model), "HOME": str(tmp_path / "user")}


def run(day: dict[str, str], *before: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*before, "sh", "-c", DAY], env=day, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.skipif(sys.platform == "win32", reason="needs sh")
def test_br69_a_whole_day_offline_tries_no_connection(day: dict[str, str]) -> None:
    done = run(day | {"ONHAND_OFFLINE": "1"})
    assert done.returncode == 0, done.stderr
    assert "Nothing ever connected" in done.stdout
    assert onhand.audit().uses == ()


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_br69_native_code_opens_no_internet_socket_either(day: dict[str, str], tmp_path: Path) -> None:
    """What an audit hook cannot see: the kernel sees it, in every process of the day."""
    trace = tmp_path / "trace"
    done = run(day, "strace", "-f", "-qq", "-e", "trace=%network", "-o", str(trace))
    if done.returncode != 0 and "ptrace" in done.stderr:
        pytest.skip("this machine allows no tracing")
    assert done.returncode == 0, done.stderr
    assert "AF_INET" not in trace.read_text(encoding="utf-8", errors="replace")


@pytest.mark.skipif(shutil.which("unshare") is None, reason="unshare is not installed")
def test_br69_everything_but_fetching_works_where_there_is_no_network_at_all(day: dict[str, str]) -> None:
    nowhere = ("unshare", "--map-root-user", "--net")
    if subprocess.run([*nowhere, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("this machine allows no namespaces")
    done = run(day, *nowhere)
    assert done.returncode == 0, done.stderr
    assert "Nothing ever connected" in done.stdout
