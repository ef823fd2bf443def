"""Records and words that everything shares: findings, measurements, checks and where they are found; no torch."""
