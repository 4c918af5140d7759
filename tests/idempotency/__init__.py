"""Work that is done once."""
