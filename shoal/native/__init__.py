"""Compiles env headers and calls them: build, ctypes, buffers. Knows errors and spec; needs no torch."""
