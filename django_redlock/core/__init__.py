"""Redlock with fencing tokens, as generators of effects: no socket, no thread, no Django."""
