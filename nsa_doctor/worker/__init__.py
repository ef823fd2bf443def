"""The child's side: it loads a subject, answers requests about it, and says where it is."""
