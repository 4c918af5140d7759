"""The history of the table."""
