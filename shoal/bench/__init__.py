"""What `shoal bench train` measures: where the time of training goes. Knows train; only cli knows it."""
