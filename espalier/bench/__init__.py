"""Measurements that the docs quote. Each prints what it compares with, measured in the same run."""
