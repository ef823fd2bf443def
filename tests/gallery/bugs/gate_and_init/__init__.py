"""Gates that say nothing or say one thing only, branches that are not there, starting values that never move."""
