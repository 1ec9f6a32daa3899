"""Results files -> tables, figures and a page."""
