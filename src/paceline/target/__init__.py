"""Targets: the models whose output is reproduced."""
