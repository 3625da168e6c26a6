"""Who am I: the cluster this process belongs to, as a frozen value read from the environment."""
