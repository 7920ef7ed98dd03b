"""The measurements of `shoal bench train`: where the time of training goes. Knows train; only cli knows it."""
