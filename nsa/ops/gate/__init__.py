"""The gate: one weight per branch, token and group, and the sum it weighs."""
