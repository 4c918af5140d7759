"""The rooms: one file for each lock, or for a few that differ in one step."""
