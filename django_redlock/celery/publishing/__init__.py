"""Messages of tasks: whether one is sent, and its mark on the nodes."""
