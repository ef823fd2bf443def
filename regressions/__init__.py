"""Every reported bug as a case: what was seen, what was established, and which check names it when it comes back."""
