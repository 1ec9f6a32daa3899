"""Drafters that learn while they serve: from what verification shows anyway, and only as far as it pays."""
