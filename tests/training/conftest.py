"""Tests of what works with PyTorch and its kin; collected only where those are installed."""

import importlib.util

NEEDED = ("torch", "transformers", "lightning", "zeus")
collect_ignore_glob = ["*"] if any(importlib.util.find_spec(name) is None for name in NEEDED) else []
