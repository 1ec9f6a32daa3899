"""What each drafter's training adds to the run: its network, its objective, how it is measured and kept."""
