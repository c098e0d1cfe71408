"""What the CPU backend stands on tells nobody that it is used."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.tiny import write_tiny

CODE = """
import sys
from pathlib import Path
import onhand

with onhand.open(Path(sys.argv[1])) as model:
    model.chat().ask("Hello", onhand.GenerationOptions(max_tokens=3))
"""


def environment(folder: Path) -> dict[str, str]:
    clean = {key: value for key, value in os.environ.items() if key != "ORT_DISABLE_TELEMETRY"}
    return clean | {"HOME": str(folder / "user"), "ONHAND_HOME": str(folder / "home"), "XDG_CACHE_HOME": ""}


def test_a_chat_leaves_nothing_outside_of_the_data_folder(tmp_path: Path) -> None:
    """ONNX Runtime's own telemetry writes a device id and a queue of events below the user's home."""
    path = write_tiny(tmp_path / "tiny.gguf")
    (tmp_path / "user").mkdir()
    subprocess.run([sys.executable, "-c", CODE, str(path)], env=environment(tmp_path), check=True)
    assert list((tmp_path / "user").rglob("*")) == []


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_a_chat_opens_no_internet_socket(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "tiny.gguf")
    (tmp_path / "user").mkdir()
    trace = tmp_path / "trace"
    command = ["strace", "-f", "-qq", "-e", "trace=socket", "-o", str(trace), sys.executable, "-c", CODE, str(path)]
    done = subprocess.run(command, env=environment(tmp_path), check=False, capture_output=True)
    if done.returncode != 0 and b"ptrace" in done.stderr:
        pytest.skip("this machine allows no tracing")
    assert done.returncode == 0
    assert "AF_INET" not in trace.read_text(encoding="utf-8", errors="replace")
