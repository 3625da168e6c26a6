"""`python -m trireme` is the `trireme` command; the two differ in nothing."""

from trireme.cli.main import main

if __name__ == "__main__":
    main()
