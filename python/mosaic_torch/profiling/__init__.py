"""Profiling: the kernels that predictors are trained on, and what is measured of them."""
