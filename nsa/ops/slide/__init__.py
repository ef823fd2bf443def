"""The sliding branch: attention over the newest tokens."""
