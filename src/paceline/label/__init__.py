"""Labelling: every prompt decoded at every block size, so that a policy can learn which one serves it best."""
