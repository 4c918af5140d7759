"""What goes over a connection: scripts, RESP, replies, refusals, and why a connection ends."""
