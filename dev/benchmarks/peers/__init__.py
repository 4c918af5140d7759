"""Other lock clients, each in an environment of its own: for interoperation and for comparison.

`python` and `node` give the environments, `Peer` a running client.
"""

from .environments import PeerUnavailable, node, python
from .process import CLIENTS, SINGLE, Peer, PeerError

__all__ = ["CLIENTS", "SINGLE", "Peer", "PeerError", "PeerUnavailable", "node", "python"]
