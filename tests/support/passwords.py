"""Nodes that ask for a password, to see that it is shown nowhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager

from django.test import override_settings

from django_redlock.testing import EmbeddedNodes

SECRET = "s3cr3t"
USER = "locker"


@contextmanager
def with_passwords(nodes: EmbeddedNodes) -> Iterator[None]:
    """The default alias: five nodes, of which two know the password, two do not, one is not there.

    In every form in which a password can be written into ``NODES``.
    """
    places = [
        f"redis://{USER}:{SECRET}@127.0.0.1:{nodes[0].port}/0",
        {"URL": nodes[1].url, "USERNAME": USER, "PASSWORD": SECRET},
        f"redis://:{SECRET}@127.0.0.1:{nodes[2].port}/0",  # wrong
        {"URL": nodes[3].url, "USERNAME": "no", "PASSWORD": SECRET},  # wrong
        f"redis://{USER}:{SECRET}@127.0.0.1:1/0",  # nobody there
    ]
    alias = nodes.settings(NODE_TIMEOUT=10, RESTART_GUARD=False) | {"NODES": places}
    with ExitStack() as stack:
        for node in nodes[:2]:
            client = stack.enter_context(closing(node.client()))
            client.acl_setuser(
                USER, enabled=True, passwords=[f"+{SECRET}"], keys=["*"], categories=["+@all"]
            )
            stack.callback(client.acl_deluser, USER)
        with override_settings(REDLOCK={"default": alias}):
            yield
