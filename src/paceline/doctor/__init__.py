"""Looks at a drafter's checkpoint: what it is, and what is wrong with it."""
