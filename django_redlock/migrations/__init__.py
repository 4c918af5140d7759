"""The history of a model that has no table."""
