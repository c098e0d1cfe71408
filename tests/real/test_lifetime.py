"""What onhand takes of memory does not grow with what was asked of it, and a model that was closed is gone (BR-50)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.corpora import corpus
from support.tiny import write_tiny

CHATS = """
import gc, json, sys
import psutil
import onhand

def resident():
    gc.collect()
    return psutil.Process().memory_info().rss

sizes = []
with onhand.open(sys.argv[1]) as model:
    for number in range(300):
        chat = model.chat(system="Be brief.")
        stream = chat.stream(f"Question {number}: " + "why? " * (number % 7), onhand.GenerationOptions(max_tokens=8))
        for event in stream:
            if number % 3 == 2 and isinstance(event, onhand.TextEvent):
                break
        stream.close()
        if number % 50 == 49:
            sizes.append(resident())
print(json.dumps(sizes))
"""

CYCLES = """
import gc, json, sys
from pathlib import Path
import psutil
import onhand

sizes, mapped = [], []
for _ in range(10):
    for path in sys.argv[1:]:
        with onhand.open(path, cache=onhand.CacheOptions(context_tokens=256)) as model:
            *_, done = model.complete("Once", onhand.GenerationOptions(max_tokens=4))
            used = sum(map.path.startswith(str(model.package.folder)) for map in psutil.Process().memory_maps(False))
            most = psutil.Process().memory_info().rss
        del model, done
        gc.collect()
        left = [map.path for map in psutil.Process().memory_maps(False) if "onhand" in Path(map.path).parts]
        mapped.append((used, left))
        sizes.append((most, psutil.Process().memory_info().rss))
print(json.dumps({"sizes": sizes, "mapped": mapped}))
"""


def measured(code: str, *arguments: str) -> Any:
    """What a process of its own finds: the tests' own models would be in the way here."""
    done = subprocess.run([sys.executable, "-c", code, *arguments], check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def test_300_chats_a_third_of_them_cancelled_take_no_more_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Less than 1 MB for 50 chats, behind the first 100."""
    monkeypatch.setenv("ONHAND_HOME", str(tmp_path / "home"))
    sizes = measured(CHATS, str(write_tiny(tmp_path / "tiny.gguf")))
    assert sizes[-1] - sizes[1] < 1e6 * (len(sizes) - 2), sizes


@pytest.mark.real_model
def test_models_that_take_turns_leave_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten rounds of loading and closing both: neither their weights nor what the C library would keep of them."""
    monkeypatch.setenv("ONHAND_HOME", str(tmp_path / "onhand"))
    found = measured(CYCLES, str(corpus("smollm2")), str(corpus("gemma3")))
    assert all(used > 0 and not left for used, left in found["mapped"]), found["mapped"]
    most, left = zip(*found["sizes"], strict=True)
    assert min(most) > 250e6
    assert max(left) < 0.7 * max(most), left  # of which the interpreter and Gemma's vocabulary are nearly all
    assert max(left[-4:]) - max(left[4:8]) < 16e6, left
