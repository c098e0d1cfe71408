"""BR-71: prompts end up in plain-text logs. What is said stays with who said it, whatever is switched on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path

import pytest

from support.tiny import write_tiny

CANARIES = {name: f"canary {name} 5c1e" for name in ("system", "earlier", "user", "raw", "broken", "closed")}

# Everything logs as much as it can; what is asked is answered, refused, cut short or closed; errors are logged whole.
# The canaries come as an argument: tracebacks quote the lines of a program, and these are the test's own.
CODE = """
    import contextlib, json, logging, sys
    logging.basicConfig(level=logging.DEBUG, filename=sys.argv[2])
    logging.getLogger().addHandler(logging.StreamHandler())
    logging.captureWarnings(True)
    import onhand

    canaries = json.loads(sys.argv[3])
    few = onhand.GenerationOptions(max_tokens=24, seed=1)
    with onhand.open("tiny") as model:
        for logger in list(logging.root.manager.loggerDict):  # those that set a level of their own, too
            logging.getLogger(logger).setLevel(logging.DEBUG)
        said = [("system", canaries["system"]), ("user", canaries["earlier"]), ("assistant", canaries["earlier"])]
        chat = model.chat(options=few, transcript=[{"role": role, "content": text} for role, text in said])
        reply = chat.ask(canaries["user"]).text
        list(model.complete(canaries["raw"], few))
        with contextlib.closing(chat.stream(canaries["closed"])) as events:
            next(events)
        broken = canaries["broken"]
        for failing in (
            lambda: model.chat(broken * 3000).ask(broken),
            lambda: chat.ask(broken + chr(0xD800)),
            lambda: chat.ask(broken, onhand.GenerationOptions(max_tokens=1), returns=list[int]),
            lambda: chat.ask(broken, returns={"type": "nothing"}),
            lambda: chat.ask(broken.encode()),
            lambda: model.chat(transcript=broken),
            lambda: model.chat(transcript=[{"role": "user", "text": broken}]),
            lambda: model.chat(transcript=[{"role": "user", "content": [broken]}]),
        ):
            try:
                failing()
            except onhand.OnhandError as error:
                logging.error("it failed", exc_info=error)
        if sys.argv[1] == "leak":
            logging.getLogger("some.library").debug("request: %s", canaries["user"])
    sys.stdout.write(reply)
"""


@pytest.fixture
def user(home: Path, tmp_path: Path) -> dict[str, str]:
    """A user whose every folder is below `tmp_path`, with a model."""
    folders = {name: tmp_path / "user" / name for name in ("HOME", "TMPDIR", "XDG_CACHE_HOME", "XDG_STATE_HOME")}
    for folder in folders.values():
        folder.mkdir(parents=True)
    environment = dict(os.environ) | {name: str(folder) for name, folder in folders.items()}
    model = write_tiny(tmp_path / "tiny.gguf")
    run([sys.executable, "-m", "onhand.cli", "import", str(model), "--name", "tiny"], environment)
    return environment


def run(command: list[str], environment: Mapping[str, str], stdin: str = "") -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        command, env=environment, input=stdin, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done


def converse(user: dict[str, str], log: Path, how: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-X", "dev", "-W", "default", "-c", textwrap.dedent(CODE)]
    done = run([*command, how, str(log), json.dumps(CANARIES)], user)
    assert done.stderr.count("it failed") == 8
    assert log.read_text(encoding="utf-8").count("it failed") == 8
    return done


def places_of(text: str, folder: Path, *streams: str) -> list[str]:
    """Where a text is to be found: in what was printed, or in any file."""
    printed = [f"stream {number}" for number, stream in enumerate(streams) if text in stream]
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    return printed + [str(path) for path in files if text.encode() in path.read_bytes()]


def test_br71_nothing_that_was_said_is_in_a_log_or_any_other_file(user: dict[str, str], tmp_path: Path) -> None:
    done = converse(user, tmp_path / "debug.log", "as it is")
    for canary in CANARIES.values():
        assert places_of(canary, tmp_path, done.stdout, done.stderr) == []
    assert len(done.stdout) > 8
    assert places_of(done.stdout, tmp_path, done.stderr) == []


def test_br71_the_search_finds_what_a_library_logs(user: dict[str, str], tmp_path: Path) -> None:
    """That the test above can fail."""
    done = converse(user, tmp_path / "debug.log", "leak")
    found = places_of(CANARIES["user"], tmp_path, done.stdout, done.stderr)
    assert found == ["stream 1", str(tmp_path / "debug.log")]


def test_br71_the_command_line_keeps_no_history_and_shows_no_question(user: dict[str, str], tmp_path: Path) -> None:
    onhand = [sys.executable, "-m", "onhand.cli"]
    canary = CANARIES["user"]
    asked = run([*onhand, "ask", "--max-tokens", "5", "tiny", "-"], user, stdin=canary)
    chatted = run([*onhand, "chat", "--max-tokens", "5", "--system", canary, "tiny"], user, stdin=f"{canary}\n{canary}")
    assert places_of(canary, tmp_path, asked.stdout, asked.stderr, chatted.stdout, chatted.stderr) == []


def test_br71_a_cache_that_the_user_saves_is_the_only_file_that_a_conversation_leaves(
    user: dict[str, str], tmp_path: Path
) -> None:
    """It holds tokens, on the user's word, where the user said; nothing else is written."""
    code = """
        import sys, onhand
        with onhand.open("tiny") as model:
            model.chat(options=onhand.GenerationOptions(max_tokens=1)).ask("warm")  # what is compiled is compiled
            chat = model.chat(options=onhand.GenerationOptions(max_tokens=5))
            chat.ask(sys.argv[2])
            if sys.argv[1]:
                chat.save_cache(sys.argv[1])
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    run([*command, "", "hello"], user)
    before = set(tmp_path.rglob("*"))
    run([*command, str(tmp_path / "saved.kv"), CANARIES["user"]], user)
    assert set(tmp_path.rglob("*")) - before == {tmp_path / "saved.kv"}
