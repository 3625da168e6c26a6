"""The `trireme` command. Each of its commands is a module of its own, imported when it is called."""
