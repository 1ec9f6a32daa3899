"""Whether answers are right: calculations by their result, programs by their tests."""
