"""Offline: an audit hook that lets no socket of this Python leave the machine, and writes down what tried.

Python calls the hook before it acts, whichever library asks: what is refused has sent nothing, no look-up of a name
either. What native code does by itself, and other processes, it cannot see: docs/guides/privacy.md says what follows.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from ipaddress import ip_address
from types import TracebackType
from typing import Any, NamedTuple, Self

from onhand.errors import OfflineError, StorageError
from onhand.home import data_folder
from onhand.privacy.ledger import Action, Ledger, NetworkUse, Outcome

AF_UNIX = 1  # the same on every system; the socket module is not imported, for nothing here opens one
ANY = "*"  # every interface of this machine: others could connect to it
_NEVER_THE_CALLER = {"", "onhand", *sys.stdlib_module_names}
_PROBE = "onhand.privacy.probe"
# What may stand in a ledger as a host. A library that mistakes a URL for one must not get its query written down.
_HOST = re.compile(r"[\w.:%-]{1,255}|\*")


class OfflineGuard:
    """Holds the process offline from when it is made by `offline` until `end`, or the end of its `with` block."""

    def __init__(self) -> None:
        """Raises OfflineError where no hook can be installed: better no start than a guard that is none."""
        _install()
        _guards.add(self)

    def end(self) -> None:
        """Let go. The process stays offline while another guard holds it. Ending twice is allowed."""
        _guards.discard(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end()


@dataclass(frozen=True, slots=True, eq=False)
class _Recording:
    purpose: str
    by: str
    uses: list[NetworkUse]


class _Endpoint(NamedTuple):
    host: str
    port: int | None


_guards: set[OfflineGuard] = set()
_recordings: list[_Recording] = []
_installed = False


def offline() -> OfflineGuard:
    """Refuse every use of the network by this process, in all of its threads; the loopback and Unix sockets stay.

    `with onhand.offline():` does so for a block, `onhand.offline()` for the rest of the process, or until `end()` of
    what it returns. ONHAND_OFFLINE=1 in the environment does so from `import onhand` on, also in processes that inherit
    it. What connects, binds, sends or looks up a name gets an OfflineError, and the ledger a line. Connections made
    before are not cut. Raises OfflineError where another audit hook forbids ours.
    """
    return OfflineGuard()


def require_online(what: str) -> None:
    """Raise OfflineError if the process is offline: for who would start another process, which the hook cannot see.

    what: a whole sentence about what cannot be done.
    """
    if _guards:
        raise OfflineError(what)


@contextmanager
def recorded(purpose: str, by: str) -> Iterator[list[NetworkUse]]:
    """Write every connection of this process into the ledger while the block runs, the loopback's too.

    purpose, by: as in NetworkUse. Gives the list of what was written so far.
    """
    _install()
    recording = _Recording(purpose, by, [])
    _recordings.append(recording)
    try:
        yield recording.uses
    finally:
        _recordings.remove(recording)


def write_down(use: NetworkUse) -> None:
    """Add a line to the ledger. One that cannot be written costs the line, and never what the user was about to do."""
    with suppress(StorageError):
        Ledger(data_folder()).add(use)


def _install() -> None:
    """Add the hook, once: Python never takes one away."""
    global _installed
    if _installed:
        return
    sys.addaudithook(_hook)
    sys.audit(_PROBE)  # a hook that was there before can veto ours, and Python then tells nobody
    if not _installed:
        raise OfflineError(
            "the network cannot be guarded",
            remedy="another audit hook of this process forbids ours; ask for ours first",
        )


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if event == _PROBE:
        global _installed
        _installed = True
    if event not in _EVENTS or not (_guards or _recordings):
        return
    action, read = _EVENTS[event]
    endpoint = read(arguments)
    if endpoint is None:
        return
    host = endpoint.host if _HOST.fullmatch(endpoint.host) else "(no name of a host)"
    port = endpoint.port
    if _is_loopback(host):
        if _recordings and action == "connect":
            _record(action, "allowed", host, port)
    elif _guards:
        _record(action, "refused", host, port)
        raise OfflineError(
            f"{_PHRASES[action]} {host}{'' if port is None else f' port {port}'} was refused", host, port
        )
    else:
        _record(action, "allowed", host, port)


def _record(action: Action, outcome: Outcome, host: str, port: int | None) -> None:
    recording = _recordings[-1] if _recordings else _Recording("unknown", _caller(), [])
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    use = NetworkUse(
        when=when, action=action, outcome=outcome, host=host, port=port, purpose=recording.purpose, by=recording.by
    )
    recording.uses.append(use)
    write_down(use)


def _caller() -> str:
    """The package whose code is at work: the innermost that is neither ours nor Python's own."""
    frame = sys._getframe().f_back
    while frame is not None:
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package not in _NEVER_THE_CALLER:
            return package
        frame = frame.f_back
    return "unknown"


def _is_loopback(host: str) -> bool:
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        address = ip_address(host)
    except ValueError:
        return False
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def _of_socket(arguments: tuple[Any, ...]) -> _Endpoint | None:
    """The address in the arguments (socket, address). None: nothing that leaves the machine."""
    socket, address = arguments
    if socket.family == AF_UNIX or address is None:  # none: a datagram on a socket that was let connect
        return None
    if isinstance(address, tuple) and len(address) > 1 and isinstance(address[0], str | bytes | bytearray):
        return _Endpoint(_text(address[0]) or ANY, _port(address[1]))
    return _Endpoint(f"address-family-{int(socket.family)}", None)  # such as Bluetooth: not ours to take apart


def _of_name(arguments: tuple[Any, ...]) -> _Endpoint | None:
    """The name in the arguments (host) or (host, port, ...). None: the machine's own addresses."""
    host, port = (*arguments[:2], None)[:2]
    return _Endpoint(_text(host), _port(port)) if host else None


def _of_address(arguments: tuple[Any, ...]) -> _Endpoint | None:
    """The address in the arguments ((host, port, ...),)."""
    return _of_name(arguments[0])


def _text(host: object) -> str:
    return host.decode("ascii", "replace") if isinstance(host, bytes | bytearray) else str(host)


def _port(port: object) -> int | None:
    return port if isinstance(port, int) else None


_PHRASES: dict[Action, str] = {
    "connect": "a connection to",
    "send": "a datagram to",
    "bind": "opening a port to others, on",
    "look-up": "a look-up of",
}

_EVENTS: dict[str, tuple[Action, Callable[[tuple[Any, ...]], _Endpoint | None]]] = {
    "socket.connect": ("connect", _of_socket),
    "socket.sendto": ("send", _of_socket),
    "socket.sendmsg": ("send", _of_socket),
    "socket.bind": ("bind", _of_socket),
    "socket.getaddrinfo": ("look-up", _of_name),
    "socket.gethostbyname": ("look-up", _of_name),
    "socket.gethostbyaddr": ("look-up", _of_name),
    "socket.getnameinfo": ("look-up", _of_address),
}
