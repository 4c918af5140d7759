"""A program for each client, and one of sockets by hand; all are spoken to as in `conversation`."""
