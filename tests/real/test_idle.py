"""A loaded model that has nothing to do costs nothing (BR-48)."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from support.real import real_package

pytestmark = pytest.mark.real_model

SECONDS = 4
SCRIPT = f"""
import json, sys, time
from pathlib import Path
import psutil
from onhand.backends import Chunk
from onhand.formats.package import ModelPackage
from onhand.options import CacheOptions, DeviceOptions
from onhand_cpu import backend

runtime = backend.load(ModelPackage.open(Path(sys.argv[1])), CacheOptions(), DeviceOptions())
for token in range(20):
    runtime.forward([Chunk(slot=0, tokens=[token])])
process = psutil.Process()
before = sum(process.cpu_times()[:2])
time.sleep({SECONDS})
idle = sum(process.cpu_times()[:2]) - before
print(json.dumps({{"idle": idle, "before": before}}))
"""


def test_an_idle_model_uses_less_than_one_percent_of_a_cpu() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(real_package("smollm2").folder)], capture_output=True, text=True, check=True
    )
    used = json.loads(done.stdout)
    assert used["before"] > 0.1  # the clock that is read does count what the model did
    assert used["idle"] <= 0.01 * SECONDS
