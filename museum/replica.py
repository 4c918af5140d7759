"""A replica of a server, which may lag, and the address that leads to the master of the two."""

from __future__ import annotations

from contextlib import ExitStack, closing
from typing import Self

from django_redlock.testing import EmbeddedNode
from django_redlock.testing.server import wait_for
from tests.support.proxy import Fault, Proxy

SYNC_SECONDS = 30.0


class Address(Proxy):
    """An address that can be turned to another server, as in a failover."""

    def turn(self, port: int) -> None:
        """End all connections; the next ones lead to this port."""
        self.cut()
        self._target = port
        self.heal()


class Replica:
    """A replica that is in sync when the context is entered.

    Attributes:
        node: the replica.
        address: leads to the master, and after a failover to the replica.
    """

    def __init__(self, master: EmbeddedNode) -> None:
        self._master = master
        self.node = EmbeddedNode()
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.callback(self.node.close)
            self.node.start()
            self._stream = stack.enter_context(Proxy(self._master.port))
            self.address = stack.enter_context(Address(self._master.port))
            with closing(self._master.client()) as client:
                client.config_set("repl-diskless-sync-delay", 0)
            with closing(self.node.client()) as client:
                client.replicaof(self.node.host, str(self._stream.port))
            self.catch_up()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def catch_up(self) -> None:
        """Wait until the replica has all that the master has now."""
        with closing(self._master.client()) as master, closing(self.node.client()) as replica:
            written = master.info("replication")["master_repl_offset"]

            def has_all() -> bool:
                told = replica.info("replication")
                is_up = told["master_link_status"] == "up"
                return bool(is_up and told["slave_repl_offset"] >= written)

            wait_for(has_all, SYNC_SECONDS, "a replica to be in sync")

    def lag(self) -> None:
        """From now on the replica hears nothing of its master."""
        self._stream.inflict(Fault.SILENCE)

    def fail_over(self) -> None:
        """Kill the master; the replica is the master now, and has the address."""
        self._master.kill()
        with closing(self.node.client()) as client:
            client.replicaof("NO", "ONE")
        self.address.turn(self.node.port)
