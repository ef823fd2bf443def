"""Six small models that are right, none of them `nsa`: each bug builds one of them with one part faulty."""
