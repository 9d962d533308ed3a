"""The command line; `specdec.cli.main` puts the commands together, one module each."""
