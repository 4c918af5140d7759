"""Two models of a single node with failover, for the exhaustive search of ``heal``.

    Failing        each take is a fresh client's, over a new connection
    Remembering    connections stay open while two servers change their roles

In the first, one address leads to a master; its replica has what the master had at some earlier
moment. At a failover the address leads to the replica, which is promoted with the data that it has,
and gets a replica of its own. Times are ticks.

Several nodes need no model of their own: two majorities may have one node alone in common, which
decides then as a single one does.

Left out: an old master that clients still reach (a split brain, which no rule here prevents).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

TTL, GUARD, END = 2, 3, 8
NEVER = -99


class Data(NamedTuple):
    """What is replicated.

    Attributes:
        until: the tick at which the key of the lock expires.
        epoch: the node's mark; 0: none.
        replid: to which history that mark belongs; 0: to none.
        empty: the tick at which a client first noticed that it has no mark, or NEVER.
    """

    until: int = NEVER
    epoch: int = 1
    replid: int = 0
    empty: int = NEVER


class State(NamedTuple):
    """All there is at a moment.

    Attributes:
        now: ticks.
        data, copied: of the server at the address, and of its replica.
        history: the id of the server's data, new at each promotion and when it forgets that.
        promoted: the tick of its promotion; NEVER: it was not, or has forgotten it.
        beliefs: the ticks until which each client believes that it has the lock.
        failovers: how many may come yet.
    """

    now: int = 0
    data: Data = Data()
    copied: Data = Data()
    history: int = 1
    promoted: int = NEVER
    beliefs: tuple[int, int] = (NEVER, NEVER)
    failovers: int = 2


@dataclass(frozen=True)
class Failing:
    """The rules of a connection, and how each can be broken.

    Attributes:
        notices: a promoted server's mark is looked at; else it is as good as any.
        by_id: whose mark it is, is decided by the id of its data; else a server has "promoted"
            noted once and for all.
        anew: the guard begins when a promoted server is first met; else with the tick that its
            master's first client had noted.
        guards: the guard is as long as the longest lease.
        forgets: ticks after which a server without replica forgets that it was promoted.
    """

    notices: bool = True
    by_id: bool = True
    anew: bool = True
    guards: bool = True
    forgets: int = GUARD

    def starts(self) -> Iterator[State]:
        """Yield a node that has voted for long."""
        yield State(data=Data(empty=-9), copied=Data(empty=-9))

    def wrong(self, state: State) -> str:
        """Return which promise is broken, or ""."""
        return "two holders" if min(state.beliefs) > state.now else ""

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        """Yield what can happen next."""
        now = state.now
        if now < END:
            yield "a tick", state._replace(now=now + 1)
        if state.copied != state.data:
            yield "replicated", state._replace(copied=state.data)
        if state.failovers:
            yield (
                "failed over",
                state._replace(
                    data=state.copied,
                    history=state.history + 1,
                    promoted=now,
                    failovers=state.failovers - 1,
                ),
            )
        if state.promoted != NEVER and now - state.promoted >= self.forgets:
            yield (
                "forgot that it was promoted",
                state._replace(history=state.history + 1, promoted=NEVER),
            )
        for client in range(len(state.beliefs)):
            yield f"client {client} takes", self._take(state, client)

    def _take(self, state: State, client: int) -> State:
        data = self.admit(state.data, state.now, state.history, promoted=state.promoted != NEVER)
        if data.epoch and data.until <= state.now:
            until = state.now + TTL
            beliefs = list(state.beliefs)
            beliefs[client] = until
            return state._replace(data=data._replace(until=until), beliefs=(beliefs[0], beliefs[1]))
        return state._replace(data=data)

    def admit(self, data: Data, now: int, history: int, *, promoted: bool) -> Data:
        """Return the node's data after a connection; with an epoch it votes."""
        history = history if self.by_id else 1
        if self.notices and promoted and data.replid != history:
            empty = now if self.anew or data.empty == NEVER else data.empty
            data = data._replace(epoch=0, replid=history, empty=empty)
        if not data.epoch:
            guard = GUARD if self.guards else TTL - 1
            if now - data.empty >= guard:
                data = data._replace(epoch=1)
        return data


# -- connections that stay open -------------------------------------------------------------------

OVER = -1  # the holder of a key that is no client's lease any more
OLD = -GUARD  # no rule tells a time before that from it; times are relative to now


class Server(NamedTuple):
    """One of the two servers.

    Attributes:
        data: what it has.
        holder: whose key it has until ``data.until``: the number of the client that has that lease
            now, or OVER.
        history: the id of its data's history, new at each promotion.
        promoted: whether it was a replica once.
        master: whether it is none now.
    """

    data: Data
    holder: int = OVER
    history: int = 1
    promoted: bool = False
    master: bool = True


class Client(NamedTuple):
    """A client that remembers.

    Attributes:
        server: to which its connection leads; -1: it has none.
        history: that of the server when the connection was opened, 0 where it was not promoted.
        until: when it stops believing in its lease.
    """

    server: int = -1
    history: int = 0
    until: int = 0


class World(NamedTuple):
    """All there is at a moment.

    Attributes:
        servers: A, the master at first, and B, its replica.
        clients: two.
        promotions: how many there were.
    """

    servers: tuple[Server, Server]
    clients: tuple[Client, Client]
    promotions: int = 0


@dataclass(frozen=True)
class Remembering:
    """What is looked at when a connection is opened, and what when it is used.

    For less than a tick two masters may serve at once: the old one has not heard yet that the
    other was promoted.

    Attributes:
        failover: whether a promoted server is admitted at all.
        looks: at each grant over an open connection, at "nothing"; at the "role"; at the "history",
            which is the id of a promoted server's data, and ours; at the "id" of any server's data.
            "refusals": a client that a replica refuses opens a new connection.
        at_renewals: whether a renewal looks at that, too.
        promotions: how many there may be.
        admits: the rules of a new connection.
    """

    failover: bool = True
    looks: str = "history"
    at_renewals: bool = False
    promotions: int = 2
    admits: Failing = Failing()

    def starts(self) -> Iterator[World]:
        """Yield two clients that are connected to A, which has voted for long."""
        a = Server(Data(until=0, empty=OLD))
        client = Client(0, self._history(a))
        yield World((a, a._replace(master=False)), (client, client))

    def wrong(self, world: World) -> str:
        """Return which promise is broken, or ""."""
        return "two holders" if min(each.until for each in world.clients) > 0 else ""

    def steps(self, world: World) -> Iterator[tuple[str, World]]:
        """Yield what can happen next."""
        yield from self._roles(world)
        for number, client in enumerate(world.clients):
            name = f"client {number}"
            for place, server in enumerate(world.servers):
                if server.master and (self.failover or not server.promoted):
                    yield f"{name} connects to {'AB'[place]}", self._connect(world, number, place)
            if client.until > 0:
                yield f"{name} releases", self._release(world, number)
            if client.server < 0:
                continue
            if not world.servers[client.server].master:
                if self.looks == "refusals":
                    yield f"{name} is refused", _with(world, number, client._replace(server=-1))
            elif client.until > 0:
                yield f"{name} renews", self._renew(world, number)
            else:
                yield f"{name} takes", self._take(world, number)

    def _roles(self, world: World) -> Iterator[tuple[str, World]]:
        masters = sum(each.master for each in world.servers)
        if masters == 1:
            yield "a tick", _later(world)
        for place, server in enumerate(world.servers):
            name, other = "AB"[place], world.servers[1 - place]
            if masters == 1 and not server.master:
                after = server._replace(data=other.data, holder=other.holder, history=other.history)
                yield f"{name} is in step", _at(world, place, after)
                if world.promotions < self.promotions:
                    count = world.promotions + 1
                    after = server._replace(history=1 + count, promoted=True, master=True)
                    yield f"{name} is promoted", _at(world, place, after, promotions=count)
            if masters == len(world.servers) and server.history < other.history:
                yield f"{name} becomes a replica", _at(world, place, server._replace(master=False))

    # -- what a client does ---

    def _history(self, server: Server) -> int:
        if self.looks == "history":
            return server.history if server.promoted else 0
        return server.history if self.looks == "id" else 0

    def _has_a_vote(self, server: Server, client: Client) -> bool:
        return bool(server.data.epoch) and client.history == self._history(server)

    def _connect(self, world: World, number: int, place: int) -> World:
        server, client = world.servers[place], world.clients[number]
        data = self.admits.admit(server.data, 0, server.history, promoted=server.promoted)
        world = _at(world, place, server._replace(data=data))
        opened = client._replace(server=place, history=self._history(server))
        return _with(world, number, opened if data.epoch else client._replace(server=-1))

    def _take(self, world: World, number: int) -> World:
        client = world.clients[number]
        server = world.servers[client.server]
        if not self._has_a_vote(server, client):
            return _with(world, number, client._replace(server=-1))
        if server.data.until > 0:
            return world
        taken = server._replace(data=server.data._replace(until=TTL), holder=number)
        return _with(_at(world, client.server, taken), number, client._replace(until=TTL))

    def _renew(self, world: World, number: int) -> World:
        client = world.clients[number]
        server = world.servers[client.server]
        if self.at_renewals and not self._has_a_vote(server, client):
            return _with(world, number, client._replace(server=-1))
        if server.holder != number or server.data.until <= 0:
            return world
        kept = server._replace(data=server.data._replace(until=TTL))
        return _with(_at(world, client.server, kept), number, client._replace(until=TTL))

    def _release(self, world: World, number: int) -> World:
        client = world.clients[number]
        if client.server >= 0:
            server = world.servers[client.server]
            if server.master and server.holder == number:
                freed = server._replace(data=server.data._replace(until=0))
                world = _at(world, client.server, freed)
        return _noted(_with(world, number, client._replace(until=0)))


def _later(world: World) -> World:
    """Return the world a tick later."""
    servers = [
        each._replace(
            data=each.data._replace(
                until=max(0, each.data.until - 1), empty=max(OLD, each.data.empty - 1)
            )
        )
        for each in world.servers
    ]
    clients = [each._replace(until=max(0, each.until - 1)) for each in world.clients]
    return _noted(World((servers[0], servers[1]), (clients[0], clients[1]), world.promotions))


def _noted(world: World) -> World:
    """Forget whose a key was that is gone, or whose lease is over."""
    for place, server in enumerate(world.servers):
        holder = server.holder
        if holder != OVER and not (server.data.until and world.clients[holder].until):
            world = _at(world, place, server._replace(holder=OVER))
    return world


def _at(world: World, place: int, server: Server, *, promotions: int | None = None) -> World:
    servers = list(world.servers)
    servers[place] = server
    count = world.promotions if promotions is None else promotions
    return World((servers[0], servers[1]), world.clients, count)


def _with(world: World, number: int, client: Client) -> World:
    clients = list(world.clients)
    clients[number] = client
    return world._replace(clients=(clients[0], clients[1]))
