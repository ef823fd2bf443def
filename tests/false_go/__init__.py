"""How often `nsa-doctor go-no-go` gives a GO to a fault that shows only sometimes; `python -m tests.false_go`."""
