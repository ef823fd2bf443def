"""The functions that are odd and right: edits of the hosts, and files of their own."""
