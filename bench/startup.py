"""How long an import takes and how much memory; how long a later start takes to its first token.

python bench/startup.py [--rounds 5]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import machine

from support.corpora import corpus

IMPORT = """
import json, resource, sys, time
from pathlib import Path
from onhand.library import ModelStore, data_folder
from onhand_cpu import backend

base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
started = time.perf_counter()
package = ModelStore(data_folder()).add(Path(sys.argv[1]), "model")
backend.prepare(package)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({"seconds": time.perf_counter() - started, "peak_bytes": peak * 1024, "base_bytes": base * 1024}))
"""

START = """
import json, time
import onhand

chat = onhand.open("model").chat(options=onhand.GenerationOptions(temperature=0, max_tokens=8))
for event in chat.stream("Hello"):
    if isinstance(event, onhand.TextEvent):
        break
print(json.dumps({"wall": time.time()}))
"""


def run(code: str, home: Path, *arguments: str) -> dict[str, float]:
    environment = os.environ | {"ONHAND_HOME": str(home)}
    done = subprocess.run([sys.executable, "-c", code, *arguments], env=environment, capture_output=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    source = corpus("smollm2")
    size = source.stat().st_size
    imports, starts = [], []
    for _ in range(rounds):
        home = Path(tempfile.mkdtemp(dir=source.parent))
        imports.append(run(IMPORT, home, str(source)))
        run(START, home)  # the first start saves the tokenizer
        began = time.time()
        starts.append(run(START, home)["wall"] - began)
        shutil.rmtree(home)
    seconds = statistics.median(result["seconds"] for result in imports)
    peak = statistics.median(result["peak_bytes"] for result in imports)
    base = statistics.median(result["base_bytes"] for result in imports)
    print(f"{machine()}; SmolLM2-135M, file of {size / 1e6:.0f} MB, {rounds} rounds, medians")
    memory = f"peak {peak / 1e6:.0f} MB ({peak / size:.2f} x the file), of it {base / 1e6:.0f} MB before it began"
    print(f"import       {seconds:.2f} s, {memory}")
    print(f"later start  {statistics.median(starts):.2f} s from the start of Python to the first token")


if __name__ == "__main__":
    main()
