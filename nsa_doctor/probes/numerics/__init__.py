"""Where values stop being finite or exact, and where two runs diverge."""
