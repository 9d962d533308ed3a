"""`python -m specdec`: the command line."""

from specdec.cli.main import main

if __name__ == "__main__":
    main()
