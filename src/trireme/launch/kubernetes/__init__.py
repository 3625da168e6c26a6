"""Runs on Kubernetes: a checked job, and the objects it is rendered into."""
