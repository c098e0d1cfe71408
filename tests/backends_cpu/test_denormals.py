"""Denormals count as zero within a run, and in the program around it as they did before."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from onhand_cpu import denormals
from onhand_cpu.denormals import no_denormals
from support.tiny import write_tiny

TINY = np.full(64, np.finfo(np.float32).tiny, np.float32)


def halves() -> int:
    """How many halves of the smallest normal number are not zero in this thread."""
    return int(np.count_nonzero(TINY * np.float32(0.5)))


@pytest.mark.skipif(not denormals.SUPPORTED, reason="no mode to set here")
def test_denormals_are_zero_within_and_as_before_behind() -> None:
    assert halves() == len(TINY)
    with no_denormals():
        assert halves() == 0
        with no_denormals():
            pass
        assert halves() == 0
    assert halves() == len(TINY)


def test_an_error_leaves_the_mode_as_it_was() -> None:
    with pytest.raises(ZeroDivisionError), no_denormals():
        raise ZeroDivisionError
    assert halves() == len(TINY)


CODE = """
import sys
from pathlib import Path
import numpy as np
import onhand

with onhand.open(Path(sys.argv[1])) as model:
    model.chat().ask("Hello", onhand.GenerationOptions(max_tokens=3))
halves = np.full(64, np.finfo(np.float32).tiny, np.float32) * np.float32(0.5)
print(np.count_nonzero(halves))
"""


def test_a_program_that_chats_computes_as_it_did_before(tmp_path: Path) -> None:
    """The first session of a process would change the mode of its thread for good."""
    path = write_tiny(tmp_path / "tiny.gguf")
    done = subprocess.run([sys.executable, "-c", CODE, str(path)], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["64"]
