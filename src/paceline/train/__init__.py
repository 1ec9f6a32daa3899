"""Training: conversations of the target -> shards -> a drafter, with acceptance measured on the way."""
