"""Training runs as their folders show them: read what they wrote, measure it, never judge."""
