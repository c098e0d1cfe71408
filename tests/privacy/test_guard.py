"""Real sockets under the guard. The hosts are those that documentation may use; nothing is ever sent to them."""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

import onhand
from support.children import run_python

ADDRESS = ("192.0.2.1", 443)


def tcp() -> socket.socket:
    return socket.socket(socket.AF_INET, socket.SOCK_STREAM)


def udp() -> socket.socket:
    return socket.socket(socket.AF_INET, socket.SOCK_DGRAM)


def on(make: Callable[[], socket.socket], use: Callable[[socket.socket], object]) -> Callable[[], object]:
    """The use of a new socket."""

    def act() -> object:
        with closing(make()) as made:
            return use(made)

    return act


REFUSED: dict[str, tuple[Callable[[], object], str, int | None]] = {
    "connect": (on(tcp, lambda s: s.connect(ADDRESS)), *ADDRESS),
    "connect_ex": (on(tcp, lambda s: s.connect_ex(ADDRESS)), *ADDRESS),
    "a datagram": (on(udp, lambda s: s.sendto(b"x", ADDRESS)), *ADDRESS),
    "a message": (on(udp, lambda s: s.sendmsg([b"x"], [], 0, ADDRESS)), *ADDRESS),
    "a port for everybody": (on(tcp, lambda s: s.bind(("", 8080))), "*", 8080),
    "a port on an address": (on(tcp, lambda s: s.bind(("192.0.2.1", 8080))), "192.0.2.1", 8080),
    "a name": (lambda: socket.getaddrinfo("a.invalid", 443), "a.invalid", 443),
    "a name in bytes": (lambda: socket.getaddrinfo(b"a.invalid", "https"), "a.invalid", None),
    "gethostbyname": (lambda: socket.gethostbyname("a.invalid"), "a.invalid", None),
    "gethostbyname_ex": (lambda: socket.gethostbyname_ex("a.invalid"), "a.invalid", None),
    "gethostbyaddr": (lambda: socket.gethostbyaddr("192.0.2.1"), "192.0.2.1", None),
    "getnameinfo": (lambda: socket.getnameinfo(ADDRESS, 0), *ADDRESS),
    "asyncio": (lambda: asyncio.run(_open_connection()), *ADDRESS),
    "a name that only looks like ours": (lambda: socket.gethostbyname("localhost.invalid"), "localhost.invalid", None),
}


async def _open_connection() -> None:
    await asyncio.open_connection(*ADDRESS)


@pytest.mark.parametrize("attempt", REFUSED)
def test_what_would_leave_the_machine_is_refused_and_named(attempt: str) -> None:
    act, host, port = REFUSED[attempt]
    with onhand.offline(), pytest.raises(onhand.OfflineError) as caught:
        act()
    assert (caught.value.host, caught.value.port) == (host, port)
    assert isinstance(caught.value, ConnectionError)
    assert host in str(caught.value)
    assert "ONHAND_OFFLINE" in str(caught.value)
    (use,) = onhand.audit().uses
    assert (use.outcome, use.host, use.port) == ("refused", host, port)


@pytest.mark.skipif(not socket.has_ipv6, reason="needs IPv6")
def test_ipv6_is_refused_too() -> None:
    with closing(socket.socket(socket.AF_INET6)) as six, onhand.offline(), pytest.raises(onhand.OfflineError):
        six.connect(("2001:db8::1", 443))


@pytest.mark.skipif(sys.platform != "linux", reason="needs netlink")
def test_a_kind_of_socket_that_we_do_not_know_is_refused() -> None:
    netlink = on(lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW), lambda s: s.bind((0, 0)))
    with onhand.offline(), pytest.raises(onhand.OfflineError) as caught:
        netlink()
    assert caught.value.host == f"address-family-{int(socket.AF_NETLINK)}"


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def test_the_loopback_stays_open_and_leaves_no_line(listener: socket.socket) -> None:
    host, port = listener.getsockname()
    with (
        onhand.offline(),
        socket.create_connection(("localhost", port)) as client,
        listener.accept()[0] as end,
    ):
        client.sendall(b"hello")
        assert end.recv(5) == b"hello"
        with closing(udp()) as datagrams:
            assert datagrams.sendto(b"x", (host, port)) == 1
    assert onhand.audit().uses == ()


@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="needs Unix sockets")
def test_unix_sockets_stay_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # their paths must be short
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client, onhand.offline():
        server.bind("s")
        server.listen()
        client.connect("s")
    assert onhand.audit().uses == ()


def test_threads_that_ran_before_are_offline_too() -> None:
    begun, told = threading.Event(), []

    def work() -> None:
        begun.wait()
        try:
            socket.gethostbyname("a.invalid")
        except OSError as error:
            told.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    with onhand.offline():
        begun.set()
        thread.join()
    assert [type(error) for error in told] == [onhand.OfflineError]


def test_a_library_that_swallows_errors_still_carries_ours_and_leaves_a_line() -> None:
    with onhand.offline(), pytest.raises(urllib.error.URLError) as caught:
        urllib.request.urlopen("http://a.invalid/path?query=secret")
    assert isinstance(caught.value.reason, onhand.OfflineError)
    assert [use.host for use in onhand.audit().uses] == ["a.invalid"]


def test_a_url_that_is_mistaken_for_a_host_is_not_written_down(home: Path) -> None:
    with onhand.offline(), pytest.raises(onhand.OfflineError) as caught:
        socket.getaddrinfo("http://user:secret@a.invalid/?token=secret", 80)
    assert "secret" not in str(caught.value)
    assert "secret" not in (home / "network.jsonl").read_text()


def test_the_ledger_names_the_package_that_tried(tmp_path: Path) -> None:
    (tmp_path / "chatty").mkdir()
    (tmp_path / "chatty" / "__init__.py").write_text("import socket\ndef call(): socket.gethostbyname('a.invalid')\n")
    code = """
        import contextlib, onhand, chatty
        with contextlib.suppress(ConnectionError):
            chatty.call()
        print(onhand.audit().uses[0].by)
    """
    assert run_python(code, online=False, PYTHONPATH=str(tmp_path)) == "chatty\n"


# From here on in processes of their own, for this one is offline to its end. A look-up of an address sends nothing.
ATTEMPT = """
    import os, socket
    import onhand
    def attempt():
        try:
            return socket.gethostbyname("192.0.2.1")
        except onhand.OfflineError:
            return "refused"
"""


def test_a_block_ends_and_blocks_nest() -> None:
    code = """
        with onhand.offline():
            with onhand.offline():
                print(attempt())
            print(attempt())
        print(attempt())
    """
    assert run_python(ATTEMPT, code).split() == ["refused", "refused", "192.0.2.1"]


def test_called_plainly_it_holds_until_it_is_ended() -> None:
    code = """
        guard = onhand.offline()
        print(attempt())
        guard.end()
        guard.end()
        print(attempt())
        onhand.offline()
        import gc; gc.collect()
        print(attempt())
    """
    assert run_python(ATTEMPT, code).split() == ["refused", "192.0.2.1", "refused"]


@pytest.mark.parametrize(
    ("value", "expected"), [("1", "refused"), ("yes", "refused"), ("0", "192.0.2.1"), ("", "192.0.2.1")]
)
def test_the_environment_holds_the_process_and_those_that_it_starts(value: str, expected: str) -> None:
    code = """
        print(attempt())
        import subprocess, sys
        child = "import onhand, socket; socket.gethostbyname('192.0.2.1')"
        done = subprocess.run([sys.executable, "-c", child], capture_output=True, text=True)
        print("refused" if "OfflineError" in done.stderr else "192.0.2.1")
    """
    assert run_python(ATTEMPT, code, ONHAND_OFFLINE=value).split() == [expected] * 2


def test_without_a_guard_nothing_is_refused_and_nothing_written(home: Path) -> None:
    assert run_python(ATTEMPT, "print(attempt())") == "192.0.2.1\n"
    assert not home.exists()


def test_a_guard_that_another_hook_forbids_is_an_error_and_no_false_comfort() -> None:
    code = """
        import sys
        def veto(event, arguments):
            if event == "sys.addaudithook":
                raise RuntimeError
        sys.addaudithook(veto)
        import onhand
        try:
            onhand.offline()
        except onhand.OfflineError as error:
            print(error)
    """
    assert run_python(code).startswith("the network cannot be guarded: another audit hook")


@pytest.mark.parametrize("broken", ["folder", "full disk"])
def test_a_refusal_needs_no_ledger(home: Path, broken: str) -> None:
    home.mkdir()
    if broken == "folder":
        (home / "network.jsonl").mkdir()
    elif Path("/dev/full").exists():
        (home / "network.jsonl").symlink_to("/dev/full")
    else:
        pytest.skip("needs /dev/full")
    with onhand.offline(), pytest.raises(onhand.OfflineError):
        socket.gethostbyname("a.invalid")
