"""Ownership on its way from one process to another, as one line of text."""

from __future__ import annotations

import base64
import json
from typing import NamedTuple

from django_redlock.core.names import check_names
from django_redlock.core.protocol import NONCE


class Handle(NamedTuple):
    """Ownership on its way to somebody else: the nonce and what it is for."""

    alias: str
    nonce: str
    names: tuple[str, ...]

    def encode(self) -> str:
        """One line of text without spaces."""
        text = json.dumps([1, *self], separators=(",", ":"))
        return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")

    @classmethod
    def decode(cls, text: str) -> Handle:
        """The handle in ``text``.

        Raises:
            ValueError: it is not a handle; the text is not quoted, since it may be one.
        """
        try:
            padded = text.encode() + b"=" * (-len(text) % 4)
            version, alias, nonce, names = json.loads(base64.urlsafe_b64decode(padded))
            if version == 1 and isinstance(alias, str) and NONCE.fullmatch(nonce):
                return cls(alias, nonce, check_names(names))
        except (AttributeError, RecursionError, TypeError, ValueError):
            pass
        msg = "this is not a handle of a lease"
        raise ValueError(msg)
