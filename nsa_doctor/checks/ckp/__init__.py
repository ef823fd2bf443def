"""CKP: checkpoints, as files and as what training goes on from."""
