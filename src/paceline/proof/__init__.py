"""The proof that drafting changes nothing but speed, on any target and drafter."""
