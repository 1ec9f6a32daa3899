"""Dialects in which draft networks are stored, read from and written to folders of safetensors."""
