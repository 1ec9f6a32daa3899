"""What drafters learn from and by: conversations, objectives and losses, for training and for serving alike."""
