"""Targets: causal LMs, their caches, and every shim for a version of transformers."""
