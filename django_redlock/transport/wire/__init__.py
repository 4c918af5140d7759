"""What goes over a connection: scripts, the protocol's items, replies and refusals."""
