"""Writes drafters so that other servers read them."""
