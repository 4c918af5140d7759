"""Other lock clients, each in an environment of its own: for interoperation and for comparison.

Only the standard library is imported here, because the peers' own interpreters import it too.
"""

from .environments import PeerUnavailable, node, python

__all__ = ["PeerUnavailable", "node", "python"]
