"""Runs experiments: prepare, run, evaluate, record, resume, sweep, and personalize for newcomers."""
