"""ENV: routing, and software that works together."""
