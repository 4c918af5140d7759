"""A program for each client, all spoken to as in `conversation`."""
