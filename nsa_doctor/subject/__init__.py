"""The Subject contract: what an implementation offers to be examined."""
