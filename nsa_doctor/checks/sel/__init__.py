"""SEL: which blocks a query chooses."""
