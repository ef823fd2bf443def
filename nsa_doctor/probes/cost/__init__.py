"""Time, memory and work per token."""
