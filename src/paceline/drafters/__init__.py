"""Drafters: the strategies that propose trees of tokens."""
