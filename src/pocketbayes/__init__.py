"""Bayesian neural networks small enough to carry and cheap enough to use."""
