"""The wrong functions: edits of the hosts, one list for each file."""
