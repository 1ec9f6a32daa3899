"""Policies: how much to draft, for each sequence and round. They see values and change nothing but speed."""
