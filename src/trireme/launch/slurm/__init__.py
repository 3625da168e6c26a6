"""Slurm: a batch script rendered from a job, and submitted."""
