"""Draft networks: `nn.Module`s with a frozen config each; no decoding, no files."""
