"""The address of a node, from a URL or options; redis-py connects, with TLS and AUTH.

An ``Address`` holds a password, so its ``repr`` shows the label only, and no error made here
quotes a URL: redis-py's and urllib's own messages can contain the start of a password.
"""

from __future__ import annotations

import inspect
import re
import socket
import ssl
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from redis.backoff import NoBackoff
from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection, parse_url
from redis.retry import Retry

from django_redlock.core.names import did_you_mean

from .background import call_in_child

if TYPE_CHECKING:
    from collections.abc import Mapping


SCHEMES: Final = ("redis://", "rediss://", "unix://")
MOST_DATABASES: Final = 10**9
UNREADABLE: Final = (
    "the URL cannot be parsed: a port is a number up to 65535; in a username or password, "
    "characters such as '#', '/', '?', '@' and '%' must be percent-encoded"
)
PROOFS: Final = ("password", "credential_provider", "ssl_certfile")
# The algorithm relies on these: one reply per command, in order, never sent twice.
OURS: Final = frozenset(
    {
        "decode_responses",
        "health_check_interval",
        "protocol",
        "retry",
        "retry_on_error",
        "retry_on_timeout",
        "socket_connect_timeout",
        "socket_timeout",
        "timeout",
        "max_connections",
        "parser_class",
    }
)
OURS_JOINED: Final = frozenset(name.replace("_", "") for name in OURS)  # as sockettimeout


@dataclass(frozen=True, slots=True)
class Address:
    """The address of one node, with the options of its connections.

    Attributes:
        label: ``host:port/db`` or ``unix:PATH``; for people, never with a password.
        identity: what makes two addresses the same server (not the database number).
        options: redis-py's connection arguments.
    """

    label: str
    identity: str
    connection_class: type[Connection | UnixDomainSocketConnection] = field(repr=False)
    options: Mapping[str, Any] = field(repr=False)

    @property
    def tls(self) -> bool:
        """Tell whether the server is expected to speak TLS."""
        return issubclass(self.connection_class, SSLConnection)

    @property
    def is_local(self) -> bool:
        """Tell whether the server is on this machine, as far as the address tells."""
        host = str(self.options.get("host", "localhost"))
        return "path" in self.options or host in {"localhost", "::1"} or host.startswith("127.")

    @property
    def authenticates(self) -> bool:
        """Tell whether connections prove who they are."""
        return any(self.options.get(name) for name in PROOFS)

    def connection(self, timeout: float) -> Connection | UnixDomainSocketConnection:
        """Make a connection, not yet open, that never retries; ``timeout`` in seconds, per step."""
        connection = self.connection_class(
            **self.options,
            socket_timeout=timeout,
            socket_connect_timeout=timeout,
            retry=Retry(NoBackoff(), 0),
            health_check_interval=0,
            decode_responses=False,
            protocol=2,
        )
        if isinstance(connection, TLSConnection):
            connection.tls = {
                name: value for name, value in self.options.items() if name.startswith("ssl_")
            }
        return connection


MOST_CONTEXTS: Final = 16  # that are kept; the oldest is forgotten first
FILES: Final = ("ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile")

_contexts: Final[list[tuple[object, ssl.SSLContext]]] = []
_making = threading.RLock()


class TLSConnection(SSLConnection):
    """redis-py's connection by TLS, with one SSL context for all that have the same options.

    redis-py makes one for each connection. That reads the certificates of the system and takes 20
    ms of the processor, so that five nodes at once take longer than the usual NODE_TIMEOUT.

    Attributes:
        tls: the options for TLS.
    """

    tls: Mapping[str, Any]

    def _wrap_socket_with_ssl(self, sock: socket.socket) -> ssl.SSLSocket:
        if self.ssl_validate_ocsp or self.ssl_validate_ocsp_stapled:
            return super()._wrap_socket_with_ssl(sock)  # type: ignore[no-any-return]
        return self._context().wrap_socket(sock, server_hostname=self.host)

    def _context(self) -> ssl.SSLContext:
        """Return the context of these options; a new one where a file of theirs was replaced."""
        files = [self.tls.get(name) for name in FILES] + list(ssl.get_default_verify_paths()[:2])
        key = self.tls, [_stamp(each) for each in files]
        with _making:  # the other nodes wait for the first one's
            for known, context in _contexts:
                if known == key:
                    return context
            # A socket that is not connected shakes no hands.
            with socket.socket() as bare, super()._wrap_socket_with_ssl(bare) as unconnected:
                made: ssl.SSLContext = unconnected.context
            _contexts.append((key, made))
            del _contexts[:-MOST_CONTEXTS]
            return made


def _stamp(file: str | None) -> tuple[int, int] | None:
    """Return what changes when a file is replaced; None: there is none, as redis-py will say."""
    try:
        status = Path(file).stat() if file else None
    except OSError:
        return None
    return (status.st_mtime_ns, status.st_ino) if status else None


def _after_fork() -> None:
    global _making  # noqa: PLW0603 - the state of this module
    _making = threading.RLock()


call_in_child(_after_fork)


def from_url(
    url: str,
    *,
    username: str | None = None,
    password: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Address:
    """Return the address in a ``redis://``, ``rediss://`` or ``unix://`` URL.

    Args:
        username, password: win over the URL's own.
        options: more arguments for redis-py's connection, e.g. ``ssl_ca_certs``.

    Raises:
        ValueError: the URL cannot be used; the message never quotes it.
    """
    if not url.startswith(SCHEMES):
        msg = f"the URL must begin with one of {', '.join(SCHEMES)}, as in redis://host:6379/0"
        if "sentinel" in url.partition("://")[0]:
            msg += "; Sentinel replaces a server, and a node stays the same one: name it itself"
        raise ValueError(msg)
    try:
        found = parse_url(url)
        parts = urlsplit(url)
    except ValueError:
        raise ValueError(UNREADABLE) from None
    # A password with '/', '#' or '?' ends the host part early: its rest must not be taken for a
    # path, nor its beginning for a port, which labels show.
    if parts.fragment or "@" in parts.path + parts.query:
        raise ValueError(UNREADABLE)
    if parts.scheme != "unix" and not re.fullmatch("(/[0-9]{0,9})?", parts.path):
        msg = (
            "after host and port the URL may only have a database, a number of at most nine "
            "digits, as in redis://host:6379/0"
        )
        raise ValueError(msg)
    connection_class = found.pop("connection_class", Connection)
    if connection_class is UnixDomainSocketConnection and not found.get("path"):
        msg = "the URL names no socket path"
        raise ValueError(msg)
    if connection_class is not UnixDomainSocketConnection and not found.get("host"):
        msg = "the URL names no host"
        raise ValueError(msg)
    if username is not None:
        found["username"] = username
    if password is not None:
        found["password"] = password
    return from_options(connection_class, {**found, **(options or {})})


def from_options(
    connection_class: type[Connection | UnixDomainSocketConnection], options: Mapping[str, Any]
) -> Address:
    """Return the address in redis-py's own connection arguments.

    Raises:
        ValueError: an argument that this package sets itself, or that redis-py does not know.
    """
    if connection_class is SSLConnection:
        connection_class = TLSConnection
    known = _arguments(connection_class)
    for name in options:
        if name.replace("_", "").lower() in OURS_JOINED:
            msg = (
                f"option {name!r} cannot be set, in OPTIONS or in the URL: NODE_TIMEOUT and the "
                "algorithm decide on it"
            )
            raise ValueError(msg)
        if name not in known:
            msg = (
                f"redis-py has no connection option {name!r}{did_you_mean(name, known)}; "
                "correct OPTIONS, or the URL's query"
            )
            if name in _arguments(SSLConnection):
                msg = f"option {name!r} is for TLS: begin the URL with rediss://, or remove it"
            raise ValueError(msg)
    _check_texts(options)
    db = 0 if options.get("db") is None else options["db"]
    if not _is_database(db):
        msg = "a database is a number of at most nine digits; correct 'db' in OPTIONS or in the URL"
        raise ValueError(msg)
    if issubclass(connection_class, UnixDomainSocketConnection):
        server = f"unix:{options['path']}"
        return Address(f"{server}?db={db}" if db else server, server, connection_class, options)
    host, port = str(options.get("host", "localhost")), options.get("port", 6379)
    if not _is_host(host):
        msg = "the host is no host name: its parts have 1 to 63 characters each, with dots between"
        raise ValueError(msg)
    shown = f"[{host}]" if ":" in host else host
    return Address(f"{shown}:{port}/{db}", f"{host.lower()}:{port}", connection_class, options)


def _check_texts(options: Mapping[str, Any]) -> None:
    for name in ("username", "password"):
        if not _is_sendable(options.get(name)):
            msg = f"{name.upper()} has a surrogate in it, which is no character and cannot be sent"
            raise ValueError(msg)
    if not re.fullmatch("[!-~]*", str(options.get("client_name") or "")):
        msg = (
            "option 'client_name' has a space or another character that is not printable ASCII: "
            "CLIENT SETNAME takes none; correct OPTIONS, or the URL's query"
        )
        raise ValueError(msg)


def _is_sendable(text: object) -> bool:
    """Tell whether a text can be encoded; redis-py checks other types."""
    try:
        str(text).encode()
    except UnicodeError:
        return False
    return True


def _is_database(db: object) -> bool:
    """Tell whether this is the number of a database, as an int or a text."""
    if isinstance(db, str):
        return re.fullmatch("[0-9]{1,9}", db) is not None
    return isinstance(db, int) and 0 <= db < MOST_DATABASES


def _is_host(host: str) -> bool:
    """Tell whether a resolver can look the host up."""
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return host.isprintable()


def _arguments(connection_class: type) -> set[str]:
    inits = [
        vars(base)["__init__"] for base in connection_class.__mro__[:-1] if "__init__" in vars(base)
    ]
    return {name for init in inits for name in inspect.signature(init).parameters} - {"self"}
