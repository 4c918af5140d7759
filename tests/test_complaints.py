"""What a node's refusal is told as, and what stands behind a port that is no node's."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from django.test import override_settings
from hiredis import ReplyError
from redis.exceptions import ConnectionError as NotConnected
from redis.exceptions import ResponseError

from django_redlock import NodesUnavailable, redlock
from django_redlock.testing import EmbeddedNode
from django_redlock.transport.wire.refusals import (
    ADVICE,
    NO_TLS,
    PERHAPS_NO_TLS,
    PERHAPS_TLS,
    STRANGER,
    TLS,
    WEB_SERVER,
    complaint,
    describe,
)

from .loops import unguarded
from .proxy import Proxy
from .waiting import eventually

SCRIPT = "Error running script (call to f_d8d5a5f64a37482180c2bff3c849841803502e9f): "
# What a command in a script was answered; how Redis 6.2 passes that on.
PASSED_ON = {
    "WRONGTYPE": "@user_script:4: WRONGTYPE Operation against a key holding the wrong kind",
    "OOM": "@user_script:28: @user_script: 28: -OOM command not allowed when used memory > 'max",
    "NOREPLICAS": "@user_script:1: @user_script: 1: -NOREPLICAS Not enough good replicas to write.",
    "READONLY": "@user_script:1: @user_script: 1: -READONLY You can't write against a read only",
    "NOPERM": "@user_script:1: @user_script: 1: The user executing the script can't run this com",
}


@pytest.mark.parametrize(("code", "text"), PASSED_ON.items(), ids=PASSED_ON)
def test_an_error_in_a_script_of_redis_6(code, text):
    """F12, F17, F20: what Redis before 7.0 wraps is told in the words of later versions."""
    assert complaint(ReplyError(f"ERR {SCRIPT}{text}")) == ADVICE[code]
    assert describe(ResponseError(f"{SCRIPT}{text}")) == ADVICE[code]  # redis-py took the ERR away


def test_an_unknown_error_in_a_script_is_quoted():
    """An error without advice is told as the node told it."""
    text = "@user_script:7: user_script:7: attempt to index a nil value"
    told = complaint(ReplyError(f"ERR {SCRIPT}{text}"))
    assert told == "answered with an error: user_script:7: attempt to index a nil value"


# -- what stands behind a port --------------------------------------------------------------------


def comes_to_say(url: str, *words: str) -> None:
    """See that an attempt on this one node comes to say these words of it, and no password."""
    alias = {
        "NODES": [{"URL": url, "PASSWORD": "s3cr3t"}],
        "NODE_TIMEOUT": 0.25,
        "OPTIONS": {"ssl_cert_reqs": "none"} if url.startswith("rediss") else {},
    }

    def said() -> str:
        with pytest.raises(NodesUnavailable) as error:
            redlock("name").acquire()
        assert "s3cr3t" not in f"{error.value} {error.value!r}"
        return error.value.votes[0].why

    with override_settings(REDLOCK={"default": alias}):
        eventually(lambda: any(word == said() for word in words), what=f"{words} of {url}")


@contextmanager
def answering(answer: Callable[[socket.socket], object]) -> Iterator[int]:
    """A port behind which something answers each connection in this way."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    client = listener.accept()[0]
                except OSError:  # it was closed
                    return
                with client:
                    client.settimeout(20)
                    answer(client)

        thread = threading.Thread(target=serve)
        thread.start()
        yield int(listener.getsockname()[1])
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.fixture
def node() -> Iterator[EmbeddedNode]:
    """A node without TLS."""
    with unguarded(1) as nodes:
        yield nodes[0]


def test_tls_to_a_node_without_it(node):
    """Of a plain node whose URL says rediss:// it is told that it may have no TLS."""
    comes_to_say(f"rediss://127.0.0.1:{node.port}/0", PERHAPS_NO_TLS)


def test_no_tls_to_a_node_with_it(node, tls):
    """Of a node with TLS whose URL says redis:// it is told that it may expect TLS."""
    with Proxy(node.port, tls[0]) as proxy:
        comes_to_say(f"redis://127.0.0.1:{proxy.port}/0", PERHAPS_TLS, TLS)


def test_a_web_server(tls):
    """Of a web server it is told that it is one, and by TLS that it has none."""

    class Silent(BaseHTTPRequestHandler):
        def log_message(self, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Silent) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        comes_to_say(f"redis://127.0.0.1:{server.server_port}/0", WEB_SERVER)
        comes_to_say(f"rediss://127.0.0.1:{server.server_port}/0", NO_TLS)
        with Proxy(server.server_port, tls[0]) as proxy:
            comes_to_say(f"rediss://127.0.0.1:{proxy.port}/0", WEB_SERVER)
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("bytes_", "plain", "by_tls"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", WEB_SERVER, NO_TLS),
        (b"SSH-2.0-OpenSSH_9.7\r\n", STRANGER, NO_TLS),
        (b"220 mail.example.org ESMTP\r\n", STRANGER, NO_TLS),
        (b"\x15\x03\x03\x00\x02\x02\x46", TLS, None),  # the alert of a TLS server
        (b"", PERHAPS_TLS, PERHAPS_NO_TLS),
    ],
)
def test_what_else_may_answer(bytes_, plain, by_tls):
    """Whatever answers instead of a node, the reason says what it is like."""

    def answer(client: socket.socket) -> None:
        client.recv(1 << 16)
        client.sendall(bytes_)

    with answering(answer) as port:
        comes_to_say(f"redis://127.0.0.1:{port}/0", plain)
        if by_tls is not None:
            comes_to_say(f"rediss://127.0.0.1:{port}/0", by_tls)


def test_errors_that_quote_what_may_be_secret():
    """An error of an encoding quotes characters, and an unknown one may hold anything."""
    with pytest.raises(UnicodeEncodeError) as error:
        "s3cr3t\ud800".encode()
    assert "ud800" in str(error.value)
    assert (
        describe(error.value) == "its host, USERNAME or PASSWORD has characters that cannot be sent"
    )
    assert describe(LookupError("s3cr3t")).startswith("connecting raised LookupError; look through")


def test_passwords_that_a_node_does_not_want(node):
    """A password for a node without one is told as that; a database that it does not have, too."""
    comes_to_say(
        f"redis://127.0.0.1:{node.port}/0",
        "has no password for that user; set one there, or remove PASSWORD from NODES",
    )
    gone = NotConnected("DB index is out of range")
    assert describe(gone) == "has no database of that number; correct it in NODES"
    wrong = ResponseError("invalid username-password pair or user is disabled.")
    assert describe(wrong).endswith("that NODES has for it; correct USERNAME and PASSWORD")
