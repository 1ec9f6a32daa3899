"""What each drafter learns: one file per method, a module that turns a batch into a loss."""
