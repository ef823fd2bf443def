"""What a subject does when it is called in ordinary ways: what it swallows, and what each setting changes."""
