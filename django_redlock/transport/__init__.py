"""One node: its address, handshake, connections, and whether it may vote."""
